"""Rollout files: what is written is read back, and what is malformed is said."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ckptcheck.errors import CkptcheckError
from ckptcheck.rollouts import (
    Metadata,
    Rollout,
    Rollouts,
    SamplingInfo,
    ScorerInfo,
    build_rollouts,
    read_rollouts,
    write_lines,
    write_rollouts,
)
from ckptcheck.rollouts.files import KEY


def some(number: int = 3) -> Rollouts:
    """Rollouts with every column."""
    draw = np.random.default_rng(0)
    rollouts = []
    for each in range(number):
        length, prompt = 6 + each, 2
        response = length - prompt
        rollouts.append(
            Rollout(
                tokens=draw.integers(0, 50, length).tolist(),
                prompt=prompt,
                engine=(-draw.random(response)).tolist(),
                trainer=(-draw.random(length - 1)).tolist(),
                reference=(-draw.random(length)).tolist(),
                mask=[1] * (response - 1) + [0],
                versions=["7"] * (response - 1) + ["8"],
                reward=0.5,
                finish="stop" if each else "length",
                engine_routing=draw.integers(0, 300, (length - 1, 2, 4)),
                trainer_routing=draw.integers(0, 300, (length, 2, 4)),
                engine_top=(draw.integers(0, 50, (response, 3)), -draw.random((response, 3))),
            )
        )
    about = Metadata(
        "a/model", 0, ScorerInfo("vllm", "0.32.0"), ScorerInfo("megatron"), sampling=SamplingInfo(1.0), vocabulary=50
    )
    full = -draw.random((2, 5)).astype(np.float32)
    return build_rollouts(rollouts, about).with_columns(
        full_positions=np.array([3, 9], "<i8"), engine_full_logprobs=full
    )


@pytest.mark.parametrize("writer", [write_rollouts, write_lines])
def test_what_is_written_is_read_back(tmp_path: Path, writer: object) -> None:
    rollouts = some()
    path = tmp_path / "rollouts"
    writer(rollouts, path)  # type: ignore[operator]
    found = read_rollouts(path)
    assert found.defects == ()
    assert found.columns.keys() == rollouts.columns.keys()
    for name, values in rollouts.columns.items():
        assert found.columns[name].dtype.itemsize == values.dtype.itemsize, name
        assert np.array_equal(found.columns[name], values), name
    assert found.metadata == rollouts.metadata.with_format_and_tool
    before = path.read_bytes()
    writer(rollouts, path)  # type: ignore[operator]
    assert path.read_bytes() == before


def test_lines_lose_no_bit(tmp_path: Path) -> None:
    values = np.array([-1e-45, -0.1, -3.4028235e38, -1 / 3, np.nan, -np.inf], np.float32)
    rollouts = build_rollouts([Rollout(list(range(7)), 1, engine=values.tolist())])
    write_lines(rollouts, tmp_path / "r.jsonl")
    found = read_rollouts(tmp_path / "r.jsonl").columns["engine_logprobs"][1:]
    assert found.tobytes() == values.tobytes()


def test_logprobs_are_placed_by_their_number() -> None:
    for given in ([-1.0, -2.0], [-9.0, -1.0, -2.0], [0.0, -9.0, -1.0, -2.0]):
        columns = build_rollouts([Rollout([1, 2, 3, 4], 2, engine=given)]).columns
        assert columns["engine_logprobs"][2:].tolist() == [-1.0, -2.0]


def test_what_does_not_fit_is_left_out_and_named() -> None:
    sound = Rollout([1, 2, 3], 1, engine=[-1.0, -2.0])
    odd = [
        Rollout([1, 2, 3], 1, engine=[-1.0] * 4),
        Rollout([1, 2, 3], 1),
        Rollout([1, 2], 5, engine=[]),
        Rollout([1, 2**40], 1, engine=[-1.0]),
        Rollout([1, 2], 1, engine=["x"]),
    ]
    found = build_rollouts([sound, *odd])
    assert found.sequence_count == 1
    assert [(each.number, each.reason) for each in found.metadata.left_out] == [
        (1, "it has 4 engine logprobs for 3 tokens, 2 of them after the prompt"),
        (2, "engine logprobs are missing, although other sequences have them"),
        (3, "its prompt has 5 of its 2 tokens"),
        (4, "it has a token id that is no 32-bit number"),
        (5, "its engine logprobs are not all numbers"),
    ]


def test_blocks_are_whole_sequences() -> None:
    rollouts = some(9)
    for size in (1, 10, 10_000):
        blocks = list(rollouts.blocks(size))
        assert [blocks[0].first, blocks[-1].last] == [0, 9]
        assert all(one.last == other.first for one, other in pairwise(blocks))
        assert np.array_equal(
            np.concatenate([block.positions for block in blocks]), np.concatenate([np.arange(6 + n) for n in range(9)])
        )
        assert sum(int(block.mask.sum()) for block in blocks) == sum(3 + n for n in range(9))


PROMPT = "the prompt of sequence 1 has 99 of its 7 tokens, the first of 2 such prompts"
CHANGES = [
    ({"starts": np.array([0, 6, 5, 21])}, "starts", "sequence 1 ends before it begins"),
    ({"starts": np.array([0, 6, 13, 22])}, "starts", "sequences reach from 0 to 22, and there are 21 tokens"),
    ({"prompt_lengths": np.array([2, 99, -1], "<i4")}, "prompt_lengths", PROMPT),
    ({"engine_logprobs": np.zeros(20, "<f4")}, "engine_logprobs", "it has 20 rows for 21 tokens"),
    ({"engine_logprobs": np.zeros(21, "<f2")}, "engine_logprobs", "its dtype is F16, and F32 or F64 is expected"),
    ({"tokens": np.zeros((21, 1), "<i4")}, "tokens", "it has the shape [21, 1], and 1 dimension is expected"),
    ({"tokens": None}, "tokens", "the column is missing"),
    ({"version_spans": np.array([[0, 3, 9]])}, "version_spans", "it names a version that the metadata does not list"),
    ({"version_spans": np.array([[0, 3, 0], [2, 5, 0]])}, "version_spans", "span 1, tokens 2 to 5, overlaps another or is none"),
    ({"finish": np.array([0, 1, 7], "<i2")}, "finish", "it names a reason that the metadata does not list"),
    ({"full_positions": np.array([3, 99])}, "full_positions", "it names tokens that there are not"),
    ({"engine_top_ids": None}, "engine_top_ids", "the column is missing, and engine_top_logprobs needs it"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "key", "text"), CHANGES)
def test_malformed_columns_are_said(tmp_path: Path, change: dict[str, np.ndarray], key: str, text: str) -> None:
    path = tmp_path / "r.safetensors"
    write_rollouts(some(), path)
    text_of = read_rollouts(path).metadata
    columns = {**load_file(path), **change}
    import msgspec

    save_file(
        {name: values for name, values in columns.items() if values is not None},
        path,
        {KEY: msgspec.json.encode(text_of).decode()},
    )
    assert (key, text) in [(defect.key, defect.text) for defect in read_rollouts(path).defects]


def test_other_files_are_said(tmp_path: Path) -> None:
    path = tmp_path / "r"
    for content, text in [
        (b"", "the file is empty"),
        (b"\x00" * 20, "the file begins with zero bytes where the length of its header should be"),
        (
            b"{}\n",
            'it cannot be read: the first line is not the header of a rollout file: it has no "rollouts": "ckptcheck-rollouts/1"',
        ),
        (
            b"{nonsense\n",
            "it cannot be read: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
    ]:
        path.write_bytes(content)
        assert [defect.text for defect in read_rollouts(path).defects] == [text]
    save_file({"tokens": np.zeros(3, "<i4")}, path)
    assert [defect.text for defect in read_rollouts(path).defects] == [
        "it holds no rollouts: the header has no such entry"
    ]
    save_file({"tokens": np.zeros(3, "<i4")}, path, {KEY: '{"format": "other/9"}'})
    assert [defect.text for defect in read_rollouts(path).defects] == [
        "its format is 'other/9', and ckptcheck reads ckptcheck-rollouts/1"
    ]
    with pytest.raises(CkptcheckError, match="does not exist"):
        read_rollouts(tmp_path / "none")


def test_the_name_decides_the_form(tmp_path: Path) -> None:
    write_rollouts(some(), tmp_path / "r.jsonl")
    write_lines(some(), tmp_path / "lines")
    assert (tmp_path / "r.jsonl").read_bytes() == (tmp_path / "lines").read_bytes()


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write_lines(some(), path)
    lines = path.read_text().splitlines()
    for broken, text in [
        (lines[2][:-20], "line 3"),
        ("{}", "line 3"),
        (lines[2].replace("engine_logprobs", "engine"), "line 3"),
    ]:
        path.write_text("\n".join([*lines[:2], broken, *lines[3:]]))
        assert [defect.key for defect in read_rollouts(path).defects] == [text]


def test_nothing_malformed_is_written(tmp_path: Path) -> None:
    bad = some().with_columns(engine_logprobs=np.zeros(3, "<f4"))
    for writer in (write_rollouts, write_lines):
        with pytest.raises(CkptcheckError, match="engine_logprobs: it has 3 rows for 21 tokens"):
            writer(bad, tmp_path / "r")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("length", [0x7B20, 0x7B7B])
def test_a_length_that_looks_like_a_brace_is_no_json(tmp_path: Path, length: int) -> None:
    path = tmp_path / "r.safetensors"
    write_rollouts(some(), path)
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    path.write_bytes(length.to_bytes(8, "little") + raw[8:start].ljust(length) + raw[start:])
    assert path.read_bytes()[:2] in (b" {", b"{{")
    assert read_rollouts(path).defects == ()


def test_the_first_token_of_no_sequence_is_compared_and_empty_sequences_are_none() -> None:
    lengths = [3, 0, 1, 2, 0]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    mask = np.ones(6, bool)
    made = Rollouts(columns={"starts": starts, "response_mask": mask, "tokens": np.arange(6)})
    assert [block.mask.tolist() for block in made.blocks()] == [[False, True, True, False, False, True]]
    parts = np.concatenate([block.mask for block in made.blocks(1)])
    assert parts.tolist() == [False, True, True, False, False, True]
    assert mask.all(), "the rollouts' own mask is left alone"


COLUMNS = '{"tokens": "I32", "prompt_lengths": "I32", "starts": "I64", "engine_logprobs": "F32"}'
HEAD = f'{{"rollouts": "ckptcheck-rollouts/1", "columns": {COLUMNS}}}'
LINE = '{"tokens": [5, 6, 7, 8], "prompt_lengths": 2, "engine_logprobs": [0, 0, -0.5, -0.25]}'
WRONG = [
    ("[5, 6, 7, 8]", "[5.5, 6, 7, 8]", "tokens[0] is a number, and a whole number is expected"),
    ("[5, 6, 7, 8]", '["5", 6, 7, 8]', "tokens[0] is text, and a whole number is expected"),
    ("[5, 6, 7, 8]", "[5, 6, 7, true]", "tokens[3] is true or false, and a whole number is expected"),
    ("[5, 6, 7, 8]", "[5, 6, 7, 3000000000]", "tokens[3] is above 2,147,483,647"),
    ("[5, 6, 7, 8]", "[5, 6, 7]", "engine_logprobs has 4 rows for 3 tokens"),
    ("[5, 6, 7, 8]", "5", "tokens is a whole number, and a list is expected"),
    (": 2,", ': "2",', "prompt_lengths is text, and a whole number is expected"),
    ('"prompt_lengths": 2,', "", "it has no prompt_lengths"),
    ("-0.5", '"x"', "engine_logprobs[2] is 'x', which is none of what it may be"),
    ("-0.5", "[-0.5]", "engine_logprobs[2] is a list, and a number or text or null is expected"),
    (LINE, "[]", "it is a list, and an object is expected"),
    (LINE, "[" * 100_000, "it is nested too deeply"),
]


@pytest.mark.parametrize(("given", "odd", "text"), WRONG)
def test_ids_are_whole_numbers_and_what_is_not_is_said(tmp_path: Path, given: str, odd: str, text: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(f"{HEAD}\n{LINE}\n")
    assert read_rollouts(path).tokens.tolist() == [5, 6, 7, 8]
    path.write_text(f"{HEAD}\n{LINE.replace(given, odd)}\n")
    assert [(defect.key, defect.text) for defect in read_rollouts(path).defects] == [("line 2", text)]


def test_an_odd_first_line_is_said(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    for head, text in [
        ('{"rollouts": "ckptcheck-rollouts/1"}', "it has no columns"),
        ('{"rollouts": "ckptcheck-rollouts/1", "columns": 3}', "columns is a whole number, and an object is expected"),
        (HEAD.replace('"F32"', "3"), "columns[...] is a whole number, and text is expected"),
        (HEAD[:-1] + r', "metadata": {"source": "\ud800"}}', "a text in it has half a surrogate pair"),
        (HEAD.replace('"F32"', '"F16"'), "the dtype of engine_logprobs is F16"),
        (
            HEAD[:-1] + ', "metadata": {"step": 99999999999999999999}}',
            "metadata.step is above 9,223,372,036,854,775,807",
        ),
    ]:
        path.write_text(f"{head}\n{LINE}\n")
        assert [defect.text for defect in read_rollouts(path).defects] == [f"it cannot be read: {text}"]


def test_runs_are_the_tokens_of_one_sequence_and_one_bin() -> None:
    rng = np.random.default_rng(0)
    lengths = np.array([5, 0, 1, 40, 0, 9, 3, 0])
    starts = np.concatenate([[0], lengths.cumsum()])
    prompts = np.array([2, 0, 1, 7, 0, 9, 0, 0], np.int32)
    rollouts = Rollouts(Metadata("made"), {"starts": starts, "prompt_lengths": prompts})
    for block in rollouts.blocks(45):
        for chosen in (np.arange(len(block.owners)), np.flatnonzero(rng.random(len(block.owners)) < 0.4)):
            for edges in ([0], [0, 1, 2, 4, 8, 16, 32], range(0, 40, 7)):
                places = np.maximum(block.positions - prompts[block.owners], 0)[chosen]
                keys = [
                    *zip(block.owners[chosen] - block.first, np.searchsorted(edges, places, "right") - 1, strict=True)
                ]
                expected = [(keys.index(key), keys.count(key), *key) for key in dict.fromkeys(keys)]
                assert [*zip(*block.split(chosen, edges), strict=True)] == expected
