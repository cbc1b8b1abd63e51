"""Checks the form of columns. Returns what is wrong as defects, whose key is the column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.document import Defect, clip
from ckptcheck.rollouts.columns import COLUMNS, REQUIRED
from ckptcheck.rollouts.metadata import Metadata
from ckptcheck.text.formatting import count, format_shape

if TYPE_CHECKING:
    from numpy.typing import NDArray


MOST_SEQUENCES, MOST_TOKENS = 1 << 24, 1 << 24
"""Most sequences of a file, and most tokens of a sequence. A sparse file may announce any number, at no cost."""
MOST_IN_ROW = {1: 1 << 24, 2: 1 << 16}
"""Number of axes after the first → their largest sizes: ids of a vocabulary; layers, and entries of a layer."""


def describe_wrong_shape(name: str, shape: Sequence[int]) -> str | None:
    """Say what is wrong with the shape of a column by itself; None where nothing is. A wrong one may be beyond any array."""
    column = COLUMNS[name]
    dimensions = 1 + len(column.trailing)
    if len(shape) != dimensions:
        expected = f"{count(dimensions, 'dimension')} {'is' if dimensions == 1 else 'are'} expected"
        return f"it has the shape {clip(format_shape(shape))}, and {expected}"
    for size, expected_size in zip(shape[1:], column.trailing, strict=True):
        if expected_size is not None and size != expected_size:
            return f"it has the shape {format_shape(shape)}, and its rows have {expected_size} numbers"
        if size > MOST_IN_ROW[len(column.trailing)]:
            return f"it has the shape {format_shape(shape)}, and no model has rows of {size:,} numbers"
    most = {"sequences": MOST_SEQUENCES, "bounds": MOST_SEQUENCES + 1}.get(column.axis)
    if most is not None and shape[0] > most:
        return f"it has {shape[0]:,} rows, and at most {most:,} are read"
    return None


def find_defects(columns: Mapping[str, NDArray[Any]], metadata: Metadata) -> list[Defect]:
    """Return the defects of columns. Values are checked only where all shapes are right."""
    defects = [Defect("missing-column", "the column is missing", name) for name in REQUIRED if name not in columns]
    if defects:
        return defects
    for name, values in columns.items():
        defects += _check_shape(name, values, columns)
    if defects:
        return defects
    defects += _check_starts(columns)
    return defects or [
        *_check_prompts(columns),
        *_check_spans(columns, metadata),
        *_check_top_pairs(columns),
        *_check_references(columns, metadata),
    ]


def _check_shape(name: str, values: NDArray[Any], columns: Mapping[str, NDArray[Any]]) -> Iterator[Defect]:
    column = COLUMNS[name]
    if (text := describe_wrong_shape(name, values.shape)) is not None:
        yield Defect("shape", text, name)
        return
    starts, tokens = columns["starts"], columns["tokens"]
    expected_length = {
        "tokens": len(tokens) if tokens.ndim == 1 else None,
        "sequences": max(0, len(starts) - 1) if starts.ndim == 1 else None,
        "bounds": None,
        "spans": None,
        "positions": len(columns["full_positions"]) if "full_positions" in columns else None,
    }[column.axis]
    if expected_length is not None and len(values) != expected_length:
        noun = {"tokens": "token", "sequences": "sequence", "positions": "position"}[column.axis]
        yield Defect("length", f"it has {count(len(values), 'row')} for {count(expected_length, noun)}", name)
    if column.axis in ("spans", "positions") and len(values) > len(tokens):
        yield Defect("length", f"it has {count(len(values), 'row')} for {count(len(tokens), 'token')}", name)
    if column.axis == "positions" and "full_positions" not in columns:
        yield Defect("missing-column", f"the column is missing, and {name} needs it", "full_positions")


def _check_starts(columns: Mapping[str, NDArray[Any]]) -> Iterator[Defect]:
    starts, total = columns["starts"], len(columns["tokens"])
    if not len(starts) or starts[0] != 0 or starts[-1] != total:
        ends = f"from {starts[0]:,} to {starts[-1]:,}" if len(starts) else "nowhere"
        yield Defect("bounds", f"sequences reach {ends}, and there are {count(total, 'token')}", "starts")
    elif (bad := (starts[1:] < starts[:-1]).nonzero()[0]).size:
        yield Defect("bounds", f"sequence {bad[0]} ends before it begins", "starts")
    elif (lengths := starts[1:] - starts[:-1]).size and (longest := int(lengths.max())) > MOST_TOKENS:
        yield Defect("bounds", f"a sequence has {longest:,} tokens, and at most {MOST_TOKENS:,} are read", "starts")


def _check_prompts(columns: Mapping[str, NDArray[Any]]) -> Iterator[Defect]:
    import numpy as np

    prompts, lengths = columns["prompt_lengths"], np.diff(columns["starts"])
    if (bad := ((prompts < 0) | (prompts > lengths)).nonzero()[0]).size:
        first = bad[0]
        text = f"the prompt of sequence {first} has {prompts[first]:,} of its {count(int(lengths[first]), 'token')}"
        total = f", the first of {bad.size:,} such prompts" if bad.size > 1 else ""
        yield Defect("bounds", text + total, "prompt_lengths")


def _check_spans(columns: Mapping[str, NDArray[Any]], metadata: Metadata) -> Iterator[Defect]:
    if (spans := columns.get("version_spans")) is None:
        return
    begins, ends, names = spans[:, 0], spans[:, 1], spans[:, 2]
    wrong = (begins < 0) | (ends <= begins) | (ends > len(columns["tokens"]))
    wrong[1:] |= begins[1:] < ends[:-1]
    if (bad := wrong.nonzero()[0]).size:
        place = bad[0]
        yield Defect(
            "bounds",
            f"span {place}, tokens {begins[place]:,} to {ends[place]:,}, overlaps another or is none",
            "version_spans",
        )
    elif ((names < 0) | (names >= len(metadata.versions))).any():
        yield Defect("bounds", "it names a version that the metadata does not list", "version_spans")


def _check_top_pairs(columns: Mapping[str, NDArray[Any]]) -> Iterator[Defect]:
    for side in ("engine", "trainer"):
        ids, logprobs = f"{side}_top_ids", f"{side}_top_logprobs"
        if (ids in columns) != (logprobs in columns):
            missing, present = (logprobs, ids) if ids in columns else (ids, logprobs)
            yield Defect("missing-column", f"the column is missing, and {present} needs it", missing)
        elif ids in columns and columns[ids].shape != columns[logprobs].shape:
            yield Defect("shape", f"it is not shaped as {logprobs} is", ids)


def _check_references(columns: Mapping[str, NDArray[Any]], metadata: Metadata) -> Iterator[Defect]:
    if (finish := columns.get("finish")) is not None and (
        (finish < -1) | (finish >= len(metadata.finish_reasons))
    ).any():
        yield Defect("bounds", "it names a reason that the metadata does not list", "finish")
    positions = columns.get("full_positions")
    if positions is not None and ((positions < 0) | (positions >= len(columns["tokens"]))).any():
        yield Defect("bounds", "it names tokens that there are not", "full_positions")
    elif positions is not None and set(positions.tolist()) & set(columns["starts"].tolist()):
        yield Defect(
            "bounds", "it names the first token of a sequence, which no distribution comes before", "full_positions"
        )
