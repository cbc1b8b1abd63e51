"""Files of rollouts that announce more than there is: they are described, and cost neither memory nor time."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from ckptcheck.checkpoint.header import Shard
from ckptcheck.errors import CkptcheckError
from ckptcheck.rollouts import files, read_rollouts, write_rollouts
from ckptcheck.rollouts.convert.detect import convert
from ckptcheck.rollouts.files import KEY
from ckptcheck.rollouts.metadata import FORMAT
from ckptcheck.rollouts.rollouts import Rollouts
from tests.limited_child import Outcome, run_limited

FIRST_LINE = json.dumps(
    {"rollouts": FORMAT, "columns": {"tokens": "I32", "prompt_lengths": "I32", "starts": "I64"}, "metadata": {}}
)
HUGE = 40 << 30


def read(path: Path) -> Outcome:
    """Read rollouts in a child that may map as much as it likes: what is wrong with them."""

    def say() -> str:
        try:
            return "; ".join(f"{defect.key}: {defect.text}" for defect in read_rollouts(path).defects)
        except CkptcheckError as error:
            return error.message

    return run_limited(say, addresses=None)


def sparse(path: Path, beginning: bytes) -> Path:
    """A file that begins so and goes on with zeros, which take no room on the disk."""
    with path.open("wb") as file:
        file.write(beginning)
        file.truncate(HUGE)
    return path


@pytest.mark.parametrize(
    ("beginning", "said"),
    [
        (b'{"rollouts": "', "line 1: it cannot be read: it holds a byte that is zero, which no text does"),
        (FIRST_LINE.encode() + b"\n", "line 2: it holds a byte that is zero, which no text does"),
    ],
)
def test_a_line_without_end(tmp_path: Path, beginning: bytes, said: str) -> None:
    path = sparse(tmp_path / "rollouts.jsonl", beginning)
    outcome = read(path)
    assert (outcome.fault, outcome.answer) == ("", said)


def test_json_without_end_is_not_converted(tmp_path: Path) -> None:
    path = sparse(tmp_path / "answers.json", b'[{"text": "')
    said = f"{path} is neither a torch.save file nor JSON: it holds a byte that is zero, which no text does"

    def say() -> str:
        with pytest.raises(CkptcheckError) as caught:
            convert([path])
        return caught.value.message

    outcome = run_limited(say)
    assert (outcome.fault, outcome.answer) == ("", said)


SOUND = {"tokens": ("I32", [4]), "starts": ("I64", [2]), "prompt_lengths": ("I32", [1])}
SHAPES = {
    "an axis beyond any array": ({"engine_top_ids": ("I32", [0, 2**62])}, "engine_top_ids"),
    "an axis beyond 64 bits": ({"engine_top_ids": ("I32", [0, 2**64])}, "engine_top_ids"),
    "layers without end": ({"engine_routing": ("I16", [4, 2**40, 0])}, "engine_routing"),
    "entries without end": ({"trainer_routing": ("I16", [4, 0, 2**40])}, "trainer_routing"),
    "more axes than an array has": ({"rewards": ("F32", [1] * 70)}, "rewards"),
    "a long sequence": ({"tokens": ("I32", [HUGE // 4 // 2])}, "starts"),
    "many sequences": ({"starts": ("I64", [HUGE // 8 // 2])}, "starts"),
    "many spans": ({"version_spans": ("I64", [HUGE // 24 // 2, 3])}, "version_spans"),
    "many positions": ({"full_positions": ("I64", [HUGE // 8 // 2])}, "full_positions"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_beyond_reason(tmp_path: Path, name: str) -> None:
    changes, key = SHAPES[name]
    header: dict[str, object] = {"__metadata__": {KEY: json.dumps({"format": FORMAT})}}
    end, tokens = 0, 0
    widths = {"I16": 2, "I32": 4, "I64": 8, "F32": 4}
    for column, (dtype, shape) in sorted({**SOUND, **changes}.items(), key=lambda item: -widths[item[1][0]]):
        nbytes = widths[dtype]
        for size in shape:
            nbytes *= size
        header[column] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + nbytes]}
        if column == "starts":
            tokens = end + 8
        end += nbytes
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    path = tmp_path / "rollouts.safetensors"
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + end)
        file.seek(8 + len(raw) + tokens)
        file.write({**SOUND, **changes}["tokens"][1][0].to_bytes(8, "little"))  # where the only sequence ends
    outcome = read(path)
    assert not outcome.fault, outcome.fault
    assert outcome.answer.startswith(f"{key}: "), outcome.answer
    assert len(outcome.answer) < 300


def test_the_sound_file_of_these_tests_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(FIRST_LINE + '\n{"tokens": [1, 2, 3, 4], "prompt_lengths": 1}\n', encoding="utf-8")
    assert read_rollouts(path).defects == ()
    assert read_rollouts(path).sequence_count == 1


def test_a_file_that_is_cut_off_after_it_was_opened(tmp_path: Path) -> None:
    """Mapped columns would end the process by a signal."""
    path = tmp_path / "rollouts.safetensors"
    starts, tokens = np.arange(0, 300_001, 3), np.zeros(300_000, np.int32)
    columns = {"starts": starts, "tokens": tokens, "prompt_lengths": np.ones(100_000, np.int32)}
    write_rollouts(Rollouts(columns=columns), path)

    def say() -> str:
        rollouts = read_rollouts(path)
        assert not rollouts.defects
        os.truncate(path, 4096)
        return str(int(rollouts.tokens.sum()))

    outcome = run_limited(say)
    assert (outcome.fault, outcome.answer) == ("", "0")


@pytest.mark.parametrize("most", [0, files.MOST_READ])
def test_a_file_that_is_cut_off_before_its_columns_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    path = tmp_path / "rollouts.safetensors"
    columns = {"starts": np.array([0, 4]), "tokens": np.zeros(4, np.int32), "prompt_lengths": np.ones(1, np.int32)}
    write_rollouts(Rollouts(columns=columns), path)
    monkeypatch.setattr(files, "MOST_READ", most)
    parse = files.parse_header

    def cut(name: str, size: int, raw: bytes) -> Shard:
        os.truncate(path, size - 20)
        return parse(name, size, raw)

    monkeypatch.setattr(files, "parse_header", cut)
    with pytest.raises(CkptcheckError, match="it became shorter while it was read"):
        read_rollouts(path)
