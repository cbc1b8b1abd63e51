"""Critics against the models they were made from, and against each other: whatever name their head has."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.open_side import open_side
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from tests.checkpoint.megatron.test_megatron import megatron
from tests.factories.checkpoint_cases import CHECKPOINTS, MEGATRON, format_finding
from tests.factories.comparison_cases import cast_tensor, read_bytes, read_header, write_bytes
from tests.factories.megatron_cases import edit

RULES = [rule for rule in rule_loader.load_rules() if rule.on == "comparison"]
Copied = Callable[[str, str], Path]
AS_OUTPUT = (
    {"contents": {"copy": {r"value_head\.weight": "output_layer.weight"}}},
    {"contents": {"drop": [r"value_head\.weight"]}},
)
"""Moves the head to where verl's critics have it."""


@pytest.fixture
def copied(tmp_path: Path) -> Copied:
    return lambda name, new: Path(shutil.copytree(MEGATRON / name, tmp_path / new))


@pytest.fixture
def in_output(copied: Copied) -> Path:
    """A critic with its head in the place of the output layer."""
    folder = copied("critic", "in-output")
    for change in AS_OUTPUT:
        edit(folder, change)
    return folder


def compare(first: Path, second: Path, *, critic: bool = True) -> tuple[list[str], Comparison]:
    seen = Comparison(open_side(str(first)), open_side(str(second)), critic=critic)
    report = run_rules(seen, RULES)
    assert not report.crashed
    return [f"{finding.code} {format_finding(finding)}" for finding in report.findings], seen


def test_two_runs_a_gpt_and_its_critic() -> None:
    for pair in (("dense", "critic"), ("critic", "dense"), ("tp2-pp2", "critic"), ("legacy-pp2", "legacy-critic-pp2")):
        found, seen = compare(MEGATRON / pair[0], MEGATRON / pair[1])
        assert found == []
        assert set(seen.match_result.heads.values()) == {"output_layer.weight", "value_head.weight"}
    found, _ = compare(MEGATRON / "dense", MEGATRON / "critic", critic=False)
    assert [text.split()[0] for text in found] == ["CMP001", "CMP001"]


def test_a_head_in_the_place_of_the_output_layer_is_a_head(in_output: Path) -> None:
    found, seen = compare(MEGATRON / "dense", in_output)
    assert found == []
    assert seen.match_result.heads == {
        "output_layer.weight": "output_layer.weight",
        "score.weight": "output_layer.weight",
    }
    found, seen = compare(in_output, MEGATRON / "critic")
    assert found == []
    assert ("output_layer.weight", "value_head.weight") in {pair.names for pair in seen.match_result.pairs}
    found, _ = compare(MEGATRON / "dense", in_output, critic=False)
    assert [text.split()[0] for text in found] == ["CMP003"]


@pytest.mark.parametrize("key", ["value_head.weight", "output_layer.weight"])
def test_it_is_row_0_of_what_was_loaded_into_it(key: str, copied: Copied, in_output: Path) -> None:
    folder = in_output if key == "output_layer.weight" else copied("critic", "other")
    row = megatron(MEGATRON / "dense").read("output_layer.weight", [slice(0, 1)])
    edit(folder, {"elements": {key: [{"hex": row.tobytes().hex()}]}})
    found, _ = compare(MEGATRON / "dense", folder)
    assert [text.partition(f"{key}: ")[2] for text in found] == [
        "the value head is row 0 of the other checkpoint's LM head, byte for byte"
    ]


def test_a_head_of_no_numbers_is_none(copied: Copied) -> None:
    folder = copied("critic", "other")
    edit(folder, {"elements": {"value_head.weight": [{"hex": np.full(3, np.nan, "<f4").tobytes().hex()}]}})
    found, _ = compare(MEGATRON / "dense", folder)
    assert len(found) == 1
    assert "the value head is unusable: 3 of its " in found[0]


@pytest.mark.parametrize("side", [0, 1])
def test_it_is_not_row_0_of_its_own_embedding(copied: Copied, side: int) -> None:
    folder = copied("critic", "other")
    row = megatron(folder).read("embedding.word_embeddings.weight", [slice(0, 1)])
    edit(folder, {"elements": {"value_head.weight": [{"hex": row.tobytes().hex()}]}})
    found, _ = compare(*((MEGATRON / "critic", folder), (folder, MEGATRON / "critic"))[side])
    assert "value_head.weight: the value head is row 0 of its own checkpoint's embedding, byte for byte" in " ".join(
        found
    )


def test_a_row_that_was_widened_is_that_row(tmp_path: Path) -> None:
    """A GPT in bf16 loaded into a critic in float32."""
    gpt, critic = (Path(shutil.copytree(CHECKPOINTS / "tiny-llama", tmp_path / name)) for name in ("gpt", "critic"))
    tensors = read_bytes(gpt / "model.safetensors")
    shapes: dict[str, Any] = {name: entry["shape"] for name, entry in read_header(gpt / "model.safetensors").items()}
    dtype, rows = cast_tensor(*tensors["lm_head.weight"], "BF16")
    row = np.frombuffer(rows[: 2 * shapes["lm_head.weight"][1]], "<u2").astype("<u4") << 16
    write_bytes(gpt / "model.safetensors", tensors | {"lm_head.weight": (dtype, rows)}, shapes)
    del tensors["lm_head.weight"]
    for head, codes in ((row, ["CMP008"]), (row + np.uint32(1), [])):
        own = {"score.weight": ("F32", head.astype("<u4").tobytes())}
        write_bytes(critic / "model.safetensors", tensors | own, shapes | {"score.weight": (1, len(row))})
        assert [text.split()[0] for text in compare(gpt, critic)[0]] == codes


@pytest.mark.parametrize("output", [False, True], ids=["value_head", "output_layer"])
@pytest.mark.slow
def test_a_head_that_training_left_out(output: bool, copied: Copied) -> None:
    first, second = copied("critic", "before"), copied("critic", "after")
    key = "output_layer.weight" if output else "value_head.weight"
    for folder in (first, second):
        for change in AS_OUTPUT if output else ():
            edit(folder, change)
    random = np.random.default_rng(1)
    run_ = megatron(second)
    for name, tensor in run_.weights.items():
        if name == key:
            continue
        for number, chunk in enumerate(tensor.chunks):
            part = tuple(slice(begin, begin + size) for begin, size in zip(chunk.offsets, chunk.sizes, strict=True))
            values = run_.read(name)[part].view("<f4")
            moved = values + random.normal(0, 0.01, values.shape).astype("<f4")
            edit(second, {"elements": {tensor.key: [{"chunk": number, "hex": moved.tobytes().hex()}]}})
    found, _ = compare(first, second)
    untrained = [text for text in found if text.startswith("CMP011")]
    assert len(untrained) == 1
    assert f"{key}: the head is equal in both checkpoints" in untrained[0]
    edit(second, {"elements": {key: [{"at": 0, "hex": "0000803f"}]}})
    assert [text for text in compare(first, second)[0] if text.startswith("CMP011")] == []
