"""verl's own loader and checksum, run on the CPU, make of our flushes what we make of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from ckptcheck.checkpoint.deltas.flush import compute_flush_checksum
from ckptcheck.checkpoint.deltas.open import open_lone_deltas
from ckptcheck.checkpoint.open import open_checkpoint
from tests.conftest import needs_engine
from tests.factories.comparison_cases import write_bytes
from tests.factories.deltas import Weights, take_step, write_flush

pytestmark = pytest.mark.engine
SHAPES = {"a.weight": (64, 33), "b.weight": (129,), "c.weight": (31, 16)}
LOADER = """
import importlib.util, json, sys, types, warnings
from pathlib import Path
import torch
from safetensors.torch import load_file, save_file

warnings.simplefilter("ignore")
folder, base, result, *flushes = sys.argv[1:]
root = next(Path(place) / "verl" for place in sys.path if (Path(place) / "verl" / "checkpoint_engine" / "delta_sync").is_dir())

def load(name, path):
    spec = importlib.util.spec_from_file_location(name, root / path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

# two files of verl alone: its packages import ray
for name in ("verl", "verl.checkpoint_engine", "verl.checkpoint_engine.delta_sync"):
    sys.modules[name] = types.ModuleType(name)
encode = load("verl.checkpoint_engine.delta_sync.encode", "checkpoint_engine/delta_sync/encode.py")
loader = load("delta_loader", "workers/rollout/sglang_rollout/delta_loader.py")

class Model:
    def __init__(self, weights):
        self.weights = weights
    def load_weights(self, named):
        for name, tensor in named:
            self.weights[name].copy_(tensor)

model, checksums = Model(load_file(base)), []
for path in flushes:
    tensors = load_file(path)
    positions = tensors.get("__positions__", torch.empty(0, dtype=torch.uint8))
    checksums.append(encode.checksum(positions, tensors["__values__"]))
    loader.apply_delta(model, tensors.items())
save_file(model.weights, result)
swapped = torch.tensor([1.5, -2.0, 3.0]), torch.tensor([-2.0, 1.5, 3.0])
empty = torch.empty(0, dtype=torch.uint8)
moved = [torch.tensor(places, dtype=torch.int32).view(torch.uint8) for places in ([1, 2], [2, 1])]
print(json.dumps({"checksums": checksums, "blind": [
    encode.checksum(empty, swapped[0]) == encode.checksum(empty, swapped[1]),
    encode.checksum(moved[0], swapped[0]) == encode.checksum(moved[1], swapped[0]),
]}))
"""


@pytest.mark.parametrize("dtype", ["BF16", *(pytest.param(name, marks=pytest.mark.matrix) for name in ("F32", "F16"))])
def test_verls_loader_makes_the_same_weights(dtype: str, tmp_path: Path) -> None:
    python = needs_engine("verl").python
    width = 4 if dtype == "F32" else 2
    rng = np.random.default_rng(3)
    # numbers from 0.5 to 1, of either sign
    ones = {2: {"BF16": 0x3F00, "F16": 0x3800}.get(dtype, 0), 4: 0x3F000000}[width]
    series: list[Weights] = [{}]
    for name, shape in SHAPES.items():
        bits = rng.integers(0, 0x7F, int(np.prod(shape))).astype(f"<u{width}") + np.array(ones).astype(f"<u{width}")
        series[0][name] = bits.view(np.uint8)
    base = tmp_path / "base" / "model.safetensors"
    base.parent.mkdir()
    write_bytes(base, {name: (dtype, data.tobytes()) for name, data in series[0].items()}, dict(SHAPES))
    flushes = []
    for number, encoding in enumerate(("dense", "indices", "indices"), 1):
        series.append(take_step(series[-1], number, 0.1, width))
        path = tmp_path / "flushes" / f"{number}" / "flush.safetensors"
        flushes.append(write_flush(path, series[-2], series[-1], SHAPES, dtype=dtype, encoding=encoding))
    result = tmp_path / "result.safetensors"
    run = subprocess.run(
        [str(python), "-c", LOADER, str(tmp_path), str(base), str(result), *map(str, flushes)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    answer = json.loads(run.stdout)

    ckpt = open_checkpoint(f"{base.parent}+{tmp_path / 'flushes'}")
    (chain,) = ckpt.deltas
    theirs = _read(result)
    for name in SHAPES:
        ours = chain.compute_tensor(name)
        assert ours.tobytes() == theirs[name] == series[-1][name].tobytes(), name
    # their checksum, computed by us
    alone = open_lone_deltas(str(tmp_path / "flushes"))
    assert alone is not None
    (found,) = alone.view_for("deltas") or ()
    assert [compute_flush_checksum(delta, delta.flushes[0]) for delta in found.deltas] == answer["checksums"]
    # two values that change places
    assert answer["blind"] == [True, True]


def _read(path: Path) -> dict[str, bytes]:
    return {name: entry["data"] for name, entry in safetensors.deserialize(path.read_bytes())}
