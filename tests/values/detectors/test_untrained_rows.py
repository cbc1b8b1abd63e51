"""Untrained rows of embeddings: found by NeMo-RL's method, and judged by whether their tokens are used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter.runner import run_rules
from ckptcheck.values.detectors.row_stats import compute_row_stats
from ckptcheck.values.value_pass import ValuePass
from tests.factories.value_cases import EMBEDDING_RULES, copy_with_embedding, find_embedding_codes, write_embedding


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
    path = write_embedding(tmp_path, weight)
    stats = compute_row_stats(open_checkpoint(str(path)), "model.embed_tokens.weight")
    assert stats.identical(1e-8).nonzero()[0].tolist() == list(constants)
    exact = weight.astype(np.float64).std(axis=1, ddof=1)
    assert np.allclose(stats.std, exact, rtol=1e-4, equal_nan=True)
    report = run_rules(open_checkpoint(str(path), value_reader=ValuePass()), EMBEDDING_RULES)
    assert [finding.message.partition(" (")[0] for finding in report.findings] == ["6 rows are untrained"]
    assert ": 3,7,11,13,17,19 (" in report.findings[0].message


def test_a_nan_leaves_the_other_rows_judged(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(0, 0.5, (64, 32)).astype(np.float32)
    weight[3] *= 1e-4
    weight[5, 9] = np.nan
    weight[6, 9] = np.inf
    report = run_rules(
        open_checkpoint(str(write_embedding(tmp_path, weight)), value_reader=ValuePass()), EMBEDDING_RULES
    )
    (finding,) = report.findings
    assert finding.message.startswith(
        "1 row is untrained (the first is far below the others): 3 (of 64 rows; mean_abs=0.3"
    )
    assert "nan" not in finding.message


def test_rows_that_all_hold_nan_are_not_judged(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).normal(0, 0.5, (64, 32)).astype(np.float32)
    weight[:, 9] = np.nan
    report = run_rules(
        open_checkpoint(str(write_embedding(tmp_path, weight)), value_reader=ValuePass()), EMBEDDING_RULES
    )
    assert {reason for _, reason in report.skipped} == {"every row of model.embed_tokens.weight holds NaN or Inf"}


def test_a_looser_threshold_reaches_rows_that_are_nearly_one_number(tmp_path: Path) -> None:
    from ckptcheck.checkpoint.scan_options import ScanOptions

    weight = np.random.default_rng(0).normal(0, 0.5, (64, 32)).astype(np.float32)
    weight[3] = 0.5 + np.linspace(0, 1e-4, 32)
    options = ScanOptions(identical=1e-3)
    ckpt = open_checkpoint(str(write_embedding(tmp_path, weight)), options=options, value_reader=ValuePass())
    assert [finding.message.partition(" (")[0] for finding in run_rules(ckpt, EMBEDDING_RULES).findings] == [
        "1 row is untrained"
    ]


def copy_with_zero_rows(folder: Path, source: Path, *tokens: int) -> Path:
    import damage

    damage.linked_copy(source, folder)
    ckpt = open_checkpoint(str(folder))
    name = ckpt.components.embedding
    assert name is not None
    shard, tensor = ckpt.shards[ckpt.tensor_to_file[name]], ckpt.tensors[name]
    width = tensor.nbytes // tensor.shape[0]
    raw = bytearray((folder / shard.name).read_bytes())
    for token in tokens:
        begin = shard.data_start + tensor.data_offsets[0] + token * width
        raw[begin : begin + width] = bytes(width)
    damage.replace(folder / shard.name, bytes(raw))
    return folder


def test_a_real_model_with_untrained_special_tokens(smollm2: Path, tmp_path: Path) -> None:
    """<|im_start|> is 1 and <|im_end|> is 2: the template emits both. 5 and 6 are special and unused."""
    sound = run_rules(open_checkpoint(str(smollm2), value_reader=ValuePass()), EMBEDDING_RULES)
    assert (sound.findings, len(sound.passed)) == ((), 6)
    report = run_rules(
        open_checkpoint(str(copy_with_zero_rows(tmp_path / "ckpt", smollm2, 1, 2, 5, 6)), value_reader=ValuePass()),
        EMBEDDING_RULES,
    )
    assert [(finding.code, finding.severity) for finding in report.findings] == [
        ("EMB001", "error"),
        ("EMB002", "warning"),
    ]
    used, idle = (finding.message for finding in report.findings)
    assert used.startswith(
        "2 used tokens have an untrained row: 1 <|im_start|>, 2 <|im_end|>; token 1 is used because "
    )
    assert idle.startswith("2 rows are untrained (the first is near zero): 5 ")


def test_thresholds_are_the_users(smollm2: Path) -> None:
    from ckptcheck.checkpoint.scan_options import ScanOptions

    ckpt = open_checkpoint(str(smollm2), options=ScanOptions(near_zero=3.0), value_reader=ValuePass())
    assert [finding.code for finding in run_rules(ckpt, EMBEDDING_RULES).findings] == ["EMB001", "EMB002", "EMB002"]


def test_rows_that_were_drawn_and_decayed(smollm2: Path, tmp_path: Path) -> None:
    def draw(tokens: list[int], scale: float) -> Callable[[NDArray[np.uint16]], None]:
        def change(rows: NDArray[np.uint16]) -> None:
            drawn = np.random.default_rng(0).normal(0, scale, (len(tokens), rows.shape[1])).astype(np.float32)
            rows[tokens] = drawn.view(np.uint32) >> 16

        return change

    unused = [3, 4, 5, 6, 7]
    assert find_embedding_codes(copy_with_embedding(tmp_path / "unused", smollm2, draw(unused, 0.01))) == ["EMB006"]
    assert find_embedding_codes(copy_with_embedding(tmp_path / "used", smollm2, draw([1, *unused], 0.01))) == [
        "EMB005",
        "EMB006",
    ]
    assert (
        find_embedding_codes(
            copy_with_embedding(tmp_path / "as large as the others", smollm2, draw([1, *unused], 0.13))
        )
        == []
    )
    assert find_embedding_codes(copy_with_embedding(tmp_path / "too few", smollm2, draw([3, 4, 5], 0.01))) == []


def test_no_row_of_minilm_is_doubtful(minilm: Path) -> None:
    """BERT's [unused] rows lie at 0.4 of the median, among rare words."""
    assert find_embedding_codes(minilm) == []
