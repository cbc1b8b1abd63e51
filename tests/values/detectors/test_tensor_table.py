"""`--stats` writes one record per tensor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.values.detectors.tensor_table import encode_records, tensor_records
from ckptcheck.values.sketch import SHARES
from ckptcheck.values.value_pass import ValuePass
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.factories.value_cases import read_values


def test_stats_are_a_table(folder: Path, tmp_path: Path) -> None:
    import json

    from safetensors.numpy import load_file

    file = tmp_path / "stats.json"
    command = [sys.executable, "-m", "ckptcheck", "scan", str(folder), "--stats", str(file)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    rows = json.loads(file.read_text(encoding="utf-8"))
    assert {row["name"] for row in rows} == read_values(folder).tensors.keys()
    head = next(row for row in rows if row["name"] == "lm_head.weight")
    assert head == {
        "target": str(folder), "name": "lm_head.weight", "shard": "model-00001-of-00003.safetensors", "dtype": "F32",
        "shape": [32, 8], "absmax": head["absmax"], "nan": 0, "inf": 0, "first_nan": -1, "first_inf": -1, "zero": False,
        "constant": False, "row_mean_abs": head["row_mean_abs"], "row_max_abs": head["row_max_abs"], "row_std": head["row_std"],
        "sampled": 256, "mean": head["mean"], "std": head["std"], "rms": head["rms"], "quantiles": head["quantiles"],
    }  # fmt: skip
    weight = load_file(folder / head["shard"])["lm_head.weight"]
    sample = (weight.mean(), weight.std(), np.sqrt(np.square(weight).mean()))
    assert np.allclose([head["mean"], head["std"], head["rms"]], sample, rtol=1e-4)
    assert np.allclose(head["quantiles"], np.quantile(weight, SHARES), atol=0.01)
    assert np.allclose(head["row_mean_abs"], np.abs(weight).mean(1), rtol=1e-5)
    assert np.allclose(head["row_max_abs"], np.abs(weight).max(1), rtol=1e-5)
    assert np.allclose(head["row_std"], weight.std(1, ddof=1), rtol=1e-5)
    with_rows = {row["name"] for row in rows if row["row_std"] is not None}
    assert with_rows == {"lm_head.weight", "model.embed_tokens.weight"}
    assert len({tuple(row) for row in rows}) == 1, "every record has the same keys"
    assert 0.03 < head["absmax"] < 0.2
    assert subprocess.run([*command, "--headers-only"], capture_output=True, check=False).returncode == 2


def test_routers_have_a_column_per_row_and_what_is_not_finite_is_none(tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "ckpt"
    shutil.copytree(CHECKPOINTS / "tiny-qwen3-moe", folder)
    ckpt = open_checkpoint(str(folder))
    shard = ckpt.shards[ckpt.tensor_to_file["model.layers.1.mlp.gate.weight"]]
    raw = bytearray((folder / shard.name).read_bytes())
    at = shard.data_start + shard.tensors["model.layers.1.mlp.gate.weight"].data_offsets[0]
    raw[at : at + 4] = np.float32(np.inf).tobytes()
    (folder / shard.name).write_bytes(raw)
    table = {
        str(record["name"]): record for record in tensor_records(open_checkpoint(str(folder), value_reader=ValuePass()))
    }
    assert {name for name, record in table.items() if record["row_std"] is not None} == {
        "lm_head.weight", "model.embed_tokens.weight", "model.layers.1.mlp.gate.weight", "model.layers.2.mlp.gate.weight",
    }  # fmt: skip
    router = table["model.layers.1.mlp.gate.weight"]["row_max_abs"]
    assert isinstance(router, list)
    assert len(router) == 4
    assert router[0] is None
    assert all(value > 0 for value in router[1:])
    lines = encode_records(table.values()).decode().splitlines()
    assert len(lines) == len(table) + 2, "a record a line"
