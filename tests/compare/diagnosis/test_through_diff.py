"""The faults of the diagnosis through the comparison: written to disk, read back, and named."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.difference_causes import diagnose_differences, explain_shape_differences
from ckptcheck.compare.matching.open_side import open_side
from ckptcheck.compare.matching.side import ComparisonSide
from tests.compare.diagnosis.fault_matrix import same, sync_of
from tests.compare.diagnosis.faults import FAULTS, Fault
from tests.compare.diagnosis.sharded import HEAD_DIM, Layout, Weights

LAYOUTS = (Layout(tp=2, pp=2, dtype="F32"), Layout(moe=True, tp=2, ep=2))


def written(folder: Path, weights: Weights, layout: Layout) -> ComparisonSide:
    folder.mkdir()
    header, data = {}, bytearray()
    for name, bits in weights.items():
        raw = np.ascontiguousarray(bits).tobytes()
        header[name] = {"dtype": layout.dtype, "shape": bits.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    kind = ("Qwen3MoeForCausalLM", "qwen3_moe") if layout.moe else ("Qwen2ForCausalLM", "qwen2")
    config = {
        "architectures": [kind[0]], "model_type": kind[1], "num_attention_heads": layout.heads, "head_dim": HEAD_DIM,
        "num_key_value_heads": layout.kv_heads, "num_hidden_layers": 4, "hidden_size": weights["model.norm.weight"].size,
        "tie_word_embeddings": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return open_side(str(folder))


@cache
def sound(layout: Layout, where: Path) -> tuple[ComparisonSide, ComparisonSide]:
    folder = where / str(layout).replace(" ", "-")
    folder.mkdir()
    sync = sync_of(layout)
    return written(folder / "new", sync.new, layout), written(folder / "old", sync.old, layout)


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sound")


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_cause_is_named(fault: Fault, layout: Layout, where: Path, tmp_path: Path) -> None:
    sync = sync_of(layout)
    actual = fault.apply(sync)
    if same(sync.new, actual):
        pytest.skip("it changes nothing here")
    new, old = sound(layout, where)
    seen = Comparison(new, written(tmp_path / "actual", actual, layout), previous=old if fault.stale else None)
    found = {code for verdict in diagnose_differences(seen) for code in verdict.causes}
    found |= {"missing"} if seen.match_result.missing else set()
    if seen.match_result.shape_mismatches:
        assert explain_shape_differences(seen).keys() == {pair.name for pair in seen.match_result.shape_mismatches}
        assert fault.causes == ("vocabulary-padding",)
        assert all("vocabulary" in text or "cut off" in text for text in explain_shape_differences(seen).values())
    else:
        assert fault.causes[0] in found
        assert found <= set(fault.causes)
