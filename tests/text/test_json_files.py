"""JSON files that a user's folder holds are read with a sentence for each that is none, whoever reads them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.refit.lora.trial import read_adapter_shape
from ckptcheck.live.refit.source import _read_config
from ckptcheck.live.runtime.engines.sizing import default_context_len, kv_cache_size
from ckptcheck.rollouts.prompts import read_prompts_file
from ckptcheck.text.file_io import read_json_file
from tests.limited_child import run_limited

HOSTILE = {
    "nested too deep": b'{"a":' * 100_000,
    "a list nested too deep": b"[" * 100_000,
    "no text": b"\xff\xfe{",
    "cut off": b'{"r": ',
    "a number that is none": b'{"r": 1e400}',
}


def _write(folder: Path, raw: bytes) -> Path:
    for name in ("config.json", "adapter_config.json", "kept.json"):
        (folder / name).write_bytes(raw)
    return folder


READERS: dict[str, Callable[[Path], object]] = {
    "adapter": read_adapter_shape,
    "hf-config": _read_config,
    "context": default_context_len,
    "cache": lambda folder: kv_cache_size(folder, 128),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("content", HOSTILE)
def test_hostile_json_is_refused_in_words(reader: str, content: str, tmp_path: Path) -> None:
    folder = _write(tmp_path, HOSTILE[content])
    with suppress(CkptcheckError):
        READERS[reader](folder)


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_in_place_of_a_file_is_not_waited_for(reader: str, tmp_path: Path) -> None:
    for name in ("config.json", "adapter_config.json", "kept.json"):
        os.mkfifo(tmp_path / name)

    def read() -> str:
        try:
            READERS[reader](tmp_path)
        except CkptcheckError as error:
            return error.message
        return "read"

    assert not run_limited(read).fault


def test_a_file_beyond_the_cap_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1, 2, 3]")
    assert read_json_file(tmp_path / "a.json", 9) == [1, 2, 3]
    with pytest.raises(OSError, match="more than 8 bytes"):
        read_json_file(tmp_path / "a.json", 8)


@pytest.mark.parametrize("line", ['{"a":' * 100_000, '{"tokens":' + "[" * 100_000])
def test_a_line_of_prompts_that_is_nested_too_deep_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(line)
    with pytest.raises(CkptcheckError, match=r"line 1 of .* is no JSON"):
        read_prompts_file(tmp_path / "p.jsonl", None)
