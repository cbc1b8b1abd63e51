"""A tokenizer.json for this process: what a child with limits cannot load is a sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckptcheck.checkpoint import open_tokenizer as opening
from ckptcheck.checkpoint import sandbox, vocabulary
from ckptcheck.checkpoint.sandbox import SandboxResult
from ckptcheck.errors import CkptcheckError
from ckptcheck.verbs.rollout_files import load_decoder
from tests.factories.checkpoint_cases import CHECKPOINTS

pytest.importorskip("tokenizers")
SOUND = CHECKPOINTS / "tiny-chat"


def test_a_tokenizer_is_loaded_from_its_folder_and_its_file() -> None:
    raw = (SOUND / "tokenizer.json").read_bytes()
    assert opening.read_tokenizer_file(SOUND) == opening.read_tokenizer_file(SOUND / "tokenizer.json") == raw
    assert load_decoder(SOUND)([1, 2]) == load_decoder(SOUND / "tokenizer.json")([1, 2])


@pytest.mark.parametrize("goal", ["/dev/zero", "/dev/full", "tokenizer.json", "nowhere"])
def test_a_device_or_a_link_is_no_tokenizer(goal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "MOST_BYTES", 1 << 16)
    (tmp_path / "tokenizer.json").symlink_to(goal)
    for named in (tmp_path, tmp_path / "tokenizer.json"):
        with pytest.raises(CkptcheckError, match=f"cannot read the tokenizer {tmp_path}"):
            load_decoder(named)


def test_a_pipe_is_no_tokenizer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(CkptcheckError, match=r"it has no tokenizer\.json"):
        load_decoder(tmp_path)


def test_what_the_child_cannot_load_is_not_loaded_here(monkeypatch: pytest.MonkeyPatch) -> None:
    import tokenizers

    raw = (SOUND / "tokenizer.json").read_bytes()
    monkeypatch.setattr(tokenizers, "Tokenizer", None)
    for answer, why in (
        (SandboxResult((), "it takes longer than 60 seconds"), "it takes longer than 60 seconds"),
        (SandboxResult(({"bound": "memory"},), None), "it takes more memory than any tokenizer does"),
        (
            SandboxResult(({"refused": "PanicException: index out of range"},), None),
            "PanicException: index out of range",
        ),
    ):
        monkeypatch.setattr(vocabulary, "run_sandboxed", lambda *_, answer=answer, **__: answer)
        with pytest.raises(CkptcheckError, match=f"cannot read the tokenizer x: {why}"):
            opening.open_tokenizer(raw, "x")


def test_without_a_child_nothing_is_loaded_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no process can start, the file was once loaded in this one, without limits."""
    import tokenizers

    child = tmp_path / "child.py"
    child.write_text("raise SystemExit(1)", encoding="utf-8")
    monkeypatch.setattr(sandbox, "CHILD", child)
    monkeypatch.setattr(tokenizers, "Tokenizer", None)
    with pytest.raises(CkptcheckError, match="a child process could not be run with this Python"):
        opening.open_tokenizer((SOUND / "tokenizer.json").read_bytes(), "x")


def test_a_panic_in_this_process_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A panic of the Rust code is a BaseException that is no Exception."""
    import tokenizers

    class Panic(BaseException):
        pass

    class Panics:
        @staticmethod
        def from_buffer(raw: bytes) -> None:
            raise Panic("called `Option::unwrap()` on a `None` value")

    monkeypatch.setattr(tokenizers, "Tokenizer", Panics)
    monkeypatch.setattr(vocabulary, "run_sandboxed", lambda *_, **__: SandboxResult((), None))
    with pytest.raises(CkptcheckError, match="unwrap"):
        opening.open_tokenizer(b"{}", "x")
