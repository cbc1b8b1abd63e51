"""Rows and tokens of real models: sound, shifted, and under another tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import damage
import numpy as np
import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from ckptcheck.values.detectors import related_tokens
from ckptcheck.values.detectors.related_tokens import compare_related_tokens
from ckptcheck.values.value_pass import ValuePass
from tests.factories.value_cases import ALL_RULES, copy_with_values

RULES = [rule for rule in ALL_RULES if rule.code in ("TOK014", "EMB008")]
pytestmark = pytest.mark.slow
Ids = dict[str, int]


def scan(folder: Path) -> Report:
    report = run_rules(open_checkpoint(str(folder), value_reader=ValuePass()), RULES)
    assert not report.crashed
    return report


def copy_with_vocabulary(source: Path, target: Path, change: Callable[[Ids], Ids]) -> Path:
    damage.linked_copy(source, target)
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["model"]["vocab"] = change(tokenizer["model"]["vocab"])
    damage.replace(target / "tokenizer.json", json.dumps(tokenizer).encode())
    return target


def shift(first: int, by: int) -> Callable[[Ids], Ids]:
    return lambda ids: {token: number + by * (number >= first) for token, number in ids.items() if number + by >= 0}


def shuffle(ids: Ids) -> Ids:
    order = np.random.default_rng(0).permutation(len(ids)).tolist()
    return dict(zip(ids, order, strict=True))


def test_a_sound_model_fits_at_first_look(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(related_tokens, "read_row_starts")
    ckpt = open_checkpoint(str(smollm2), value_reader=ValuePass())
    assert ckpt.components.embedding is not None
    fit = compare_related_tokens(ckpt, ckpt.components.embedding)
    assert fit is not None
    assert fit.fits
    assert fit.similarity > 2 * related_tokens.MIN_SIMILARITY
    assert fit.pairs > 2000


@pytest.mark.parametrize(
    ("first", "by", "beginning"),
    [
        (0, 1, "each token's row in model.embed_tokens.weight lies 1 row before its id: "),
        (0, -1, "each token's row in model.embed_tokens.weight lies 1 row after its id: "),
        (0, 256, "each token's row in model.embed_tokens.weight lies 256 rows before its id: "),
        (
            20_000,
            1,
            "from about id 20,001 (ĠBrow) on, each token's row in model.embed_tokens.weight lies 1 row before its id",
        ),
        (
            45_000,
            -2,
            "from about id 45,001 (ĠSudden) on, each token's row in model.embed_tokens.weight lies 2 rows after its id",
        ),
    ],
)
def test_shifted_ids_of_a_real_tokenizer_are_named(
    smollm2: Path, tmp_path: Path, first: int, by: int, beginning: str
) -> None:
    (finding,) = scan(copy_with_vocabulary(smollm2, tmp_path / "copy", shift(first, by))).findings
    assert (finding.code, finding.file) == ("TOK014", "tokenizer.json")
    assert finding.message.startswith(beginning)


def test_another_tokenizer_is_named(smollm2: Path, tmp_path: Path) -> None:
    (finding,) = scan(copy_with_vocabulary(smollm2, tmp_path / "copy", shuffle)).findings
    assert finding.message.startswith(
        "the rows of model.embed_tokens.weight belong to other tokens than the tokenizer's: words and their forms "
    )


def test_halves_of_the_rows_that_changed_places_are_named(smollm2: Path, tmp_path: Path) -> None:
    """All ids miss their rows by one number, but the rows of the last ones would lie beyond the end."""

    def change(ids: Ids) -> Ids:
        return {token: (number + 24_576) % 49_152 for token, number in ids.items()}

    (finding,) = scan(copy_with_vocabulary(smollm2, tmp_path / "copy", change)).findings
    assert finding.message.startswith(
        "the rows of model.embed_tokens.weight belong to other tokens than the tokenizer's: "
    )


def test_another_tokenizer_from_some_id_on_is_named(smollm2: Path, tmp_path: Path) -> None:
    def change(ids: Ids) -> Ids:
        tail = [token for token, number in ids.items() if number >= 40_000]
        order = np.random.default_rng(0).permutation(len(tail)).tolist()
        return ids | {token: 40_000 + number for token, number in zip(tail, order, strict=True)}

    (finding,) = scan(copy_with_vocabulary(smollm2, tmp_path / "copy", change)).findings
    assert finding.code == "TOK014"
    assert "from about id 40,0" in finding.message


@pytest.mark.parametrize("steps", [0.0, 0.02, 0.1])
def test_rows_that_were_hardly_trained_are_not_judged(tmp_path: Path, smollm2: Path, steps: float) -> None:
    """A tokenizer that fits, and rows of an initialiser that moved a little towards trained ones."""
    ckpt = open_checkpoint(str(smollm2), value_reader=ValuePass())
    name = ckpt.components.embedding
    assert name is not None
    trained = related_tokens.read_row_starts(ckpt, name, 576)
    rows = np.random.default_rng(0).normal(0, trained.std(), trained.shape).astype(np.float32) + steps * trained
    patterns = (rows.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    assert scan(copy_with_values(smollm2, tmp_path / "copy", {name: patterns})).findings == ()


@pytest.mark.parametrize("wordpiece_is_shifted", [False, True])
def test_words_that_are_written_without_a_space(minilm: Path, tmp_path: Path, wordpiece_is_shifted: bool) -> None:
    """all-MiniLM-L6-v2: its WordPiece vocabulary has neither spaces nor capitals, only plurals."""
    folder = copy_with_vocabulary(minilm, tmp_path / "copy", shift(15_000, 1)) if wordpiece_is_shifted else minilm
    beginnings = [finding.message.partition(" (")[0] for finding in scan(folder).findings]
    assert beginnings == (["from about id 15,002"] if wordpiece_is_shifted else [])
