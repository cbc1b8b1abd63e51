"""Options that choose nothing, and names that are empty: none of them passes as if it were not there."""

from __future__ import annotations

from pathlib import Path

import pytest

import ckptcheck
from ckptcheck.errors import CkptcheckError
from tests.factories.command_line import run


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["scan", "sound", "--dry-load", ""], "--dry-load has no value"),
        (["scan", "sound", "--dry-load", "transformers,,vllm"], "--dry-load 'transformers,,vllm' has an empty name"),
        (["scan", "sound", "--dry-load", "vllm=/a,vllm=/b"], "--dry-load names vllm twice, and it is asked once"),
        (["scan", "sound", "--dry-load", "vllm,other"], "'other' cannot be asked for a dry load"),
        (["scan", "sound", "--select", ""], "--select has no value"),
        (["scan", "sound", "--select=,"], "--select ',' has an empty name"),
        (["scan", "sound", "--select", "IDX", "--select", " "], "--select ' ' has an empty name"),
        (["scan", "sound", "--ignore", ""], "--ignore has no value"),
        (["scan", "sound", "--consumers", "vllm,"], "--consumers 'vllm,' has an empty name"),
        (["scan", "sound", "--base", ""], "--base has no value"),
        (["scan", "sound", "-o", ""], "--output has no value"),
        (["gate", "job.yaml", "--stages", ""], "--stages has no value"),
        (["critic", "sound", "--layouts", ""], "--layouts has no value"),
        (["parity", "localize", "sound", "--tokens", ""], "--tokens has no value"),
        (["parity", "matrix", "sound", "--lengths", ","], "--lengths ',' has an empty name"),
        (["parity", "matrix", "sound", "--batch", "9" * 5000], f"--batch takes whole numbers, not {'9' * 5000}"),
        (["scan", ""], "TARGET is an empty name"),
        (["join", ""], "FOLDER is an empty name"),
        (["parity", "convert", "", "-o", "out.jsonl"], "IN is an empty name"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_what_chooses_nothing_is_a_usage_error(here: Path, words: list[str], sentence: str) -> None:
    result = run(here, *words)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines()[0] == f"ckptcheck: {sentence}"


def test_no_gpu_stays_a_choice(here: Path) -> None:
    result = run(here, "refit", "nowhere", "--set", "trainer-gpus=")
    assert "has no value" not in result.stderr


def test_names_of_the_api_are_no_letters_and_not_empty(here: Path) -> None:
    for wanted in ("", ["transformers", ""], ["vllm", "vllm"]):
        with pytest.raises(CkptcheckError):
            ckptcheck.scan(here / "sound", dry_load=wanted)
