"""Finds out why the tensors of a comparison differ, with the causes that the diagnosis knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from ckptcheck.compare.bridge.family_table import split_tensor
from ckptcheck.compare.bridge.tensor_layout import LayoutError, TensorLayout
from ckptcheck.compare.diagnosis import AttentionGeometry, DiagnosisInput, TensorBits, Verdict, diagnose
from ckptcheck.compare.diagnosis.shapes import describe_shape_cause
from ckptcheck.compare.matching import chunked_diagnosis
from ckptcheck.compare.matching.cast import can_cast, cast_patterns
from ckptcheck.compare.matching.pairing import TensorPair
from ckptcheck.compare.matching.tensor_files import TensorFiles, UnreadableFile
from ckptcheck.errors import EvidenceError
from ckptcheck.linter.evidence import remembered

if TYPE_CHECKING:
    from ckptcheck.compare.matching.comparison import Comparison

MAX_TENSORS = 256
"""Tensors that are examined, spread over kinds and layers."""
LARGE_BYTES = 1 << 27
"""A tensor of more bytes is not held in memory, but examined in slabs."""


@remembered
def diagnose_differences(comparison: Comparison) -> list[Verdict]:
    """Return verdicts about the tensors that differ. Raises EvidenceError if a file can no longer be read."""
    large: dict[str, TensorLayout] = {}
    stacked: list[list[DiagnosedTensor]] = []
    small: list[str] = []
    for pair, _, _ in comparison.value_differences.different:
        tensors = _split_experts(comparison, pair)
        if len(tensors) > 1:
            stacked.append(tensors)
        elif tensors[0].first.nbytes > LARGE_BYTES:
            large[tensors[0].name] = tensors[0].first
        else:
            small.append(tensors[0].name)
    compared_names = {
        tensor.name: pair.name for pair, _ in comparison.comparable_pairs for tensor in _split_experts(comparison, pair)
    }
    with (
        TensorFiles(comparison.first.source) as ours,
        TensorFiles(comparison.second.source) as theirs,
        ExitStack() as stack,
    ):
        previous_version = _open_previous(comparison, stack)
        try:
            verdicts = chunked_diagnosis.diagnose_large_tensors(
                large, partial(_build_input, comparison, (ours, theirs), previous_version)
            )
            known = {name for verdict in verdicts for name in verdict.tensors if "unknown" not in verdict.causes}
            rest = [name for name in small if name not in known] + _find_different_experts(stacked, ours, theirs)
            if rest:
                verdicts += diagnose(
                    _build_input(comparison, (ours, theirs), previous_version, None), rest, most=MAX_TENSORS
                )
        except UnreadableFile as error:
            raise EvidenceError(f"cannot read {error.file}: {error.reason}") from error
    return [
        structs.replace(
            verdict, tensors=tuple(dict.fromkeys(_compared_name(compared_names, name) for name in verdict.tensors))
        )
        for verdict in verdicts
    ]


class DiagnosedTensor(NamedTuple):
    """A tensor whose cause is looked for: a whole one, or one expert of a stacked one."""

    # In the form of most families.
    name: str
    first: TensorLayout
    second: TensorLayout


def _whole(pair: TensorPair) -> DiagnosedTensor:
    assert isinstance(pair.first, TensorLayout)
    assert isinstance(pair.second, TensorLayout)
    return DiagnosedTensor(_usual_name(pair.name), pair.first, pair.second)


def _split_experts(comparison: Comparison, pair: TensorPair) -> list[DiagnosedTensor]:
    """Split a large tensor that stacks experts: by its family's table, or without a table expert by expert."""
    whole = _whole(pair)
    name, *sides = whole
    if whole.first.nbytes <= LARGE_BYTES or len(whole.first.shape) != 3 or "expert" not in name:
        return [whole]
    table = comparison.first.table or comparison.second.table
    entries = table.variants if table is not None else {}
    stem, _, leaf = name.rpartition(".")
    try:
        ours, theirs = (
            split_tensor(entries, pair.name, side, comparison.dimensions)
            or {f"{stem}.{number}.{leaf}": layout for number, layout in enumerate(side.unstack())}
            for side in sides
        )
    except LayoutError:
        return [whole]
    return [DiagnosedTensor(_usual_name(part), layout, theirs[part]) for part, layout in ours.items()]


def _find_different_experts(stacked: list[list[DiagnosedTensor]], ours: TensorFiles, theirs: TensorFiles) -> list[str]:
    """Return up to MAX_TENSORS experts that differ, taken from all stacked tensors in turn. Raises UnreadableFile."""
    names: list[str] = []
    for turn in zip_longest(*stacked):
        for tensor in turn:
            if tensor is not None and tensor.first.nbytes <= LARGE_BYTES and len(names) < MAX_TENSORS:
                raw = ours.read_tensor(tensor.first), theirs.read_tensor(tensor.second)
                if raw[0].dtype != raw[1].dtype or (raw[0] != raw[1]).any():
                    names.append(tensor.name)
    return names


PreviousVersion = tuple[TensorFiles, Mapping[str, TensorLayout]]


def _open_previous(comparison: Comparison, stack: ExitStack) -> PreviousVersion | None:
    """Return the files of the previous version, and its tensor for each name."""
    if comparison.previous is None:
        return None
    own = replace(comparison, second=comparison.previous, previous=None, progress=None)
    layouts: dict[str, TensorLayout] = {}
    for pair, how in own.comparable_pairs:
        if how.target in (how.second, how.first):
            layouts |= {name: layout for name, _, layout in (_whole(pair), *_split_experts(own, pair))}
    return stack.enter_context(TensorFiles(comparison.previous.source)), layouts


@remembered
def explain_shape_differences(comparison: Comparison) -> dict[str, str]:
    """Return name → how a tensor is related to its counterpart of another shape, where that is known.

    Raises EvidenceError if a file cannot be read.
    """
    causes = {}
    with TensorFiles(comparison.first.source) as ours, TensorFiles(comparison.second.source) as theirs:
        for pair in comparison.match_result.shape_mismatches[:MAX_TENSORS]:
            one, other = pair.first, pair.second
            if (
                not (isinstance(one, TensorLayout) and isinstance(other, TensorLayout))
                or max(one.nbytes, other.nbytes) > LARGE_BYTES
            ):
                continue
            if one.dtype != other.dtype and not can_cast(one.dtype, other.dtype):
                continue
            try:
                bits = _read_bits(ours, one, other.dtype, None), _read_bits(theirs, other, other.dtype, None)
            except UnreadableFile as error:
                raise EvidenceError(f"cannot read {error.file}: {error.reason}") from error
            if text := describe_shape_cause(*bits, _usual_name(pair.name)):
                causes[pair.name] = text
    return causes


def _compared_name(own: Mapping[str, str], name: str) -> str:
    """Return the name of the compared tensor. A verdict names one expert of a stacked tensor ``NAME[3]``."""
    return own[name] if name in own else own[name.rpartition("[")[0]]


def _build_input(
    comparison: Comparison,
    files: tuple[TensorFiles, TensorFiles],
    previous_version: PreviousVersion | None,
    slab: chunked_diagnosis.Slab | None,
    only: Iterable[str] | None = None,
) -> DiagnosisInput:
    """Return the input of the diagnosis: whole tensors without the large ones, or one slab of each matrix.

    only: names to which the input is restricted; None for no restriction.
    """
    expected: dict[str, Callable[[], TensorBits]] = {}
    actual: dict[str, Callable[[], TensorBits]] = {}
    previous: dict[str, Callable[[], TensorBits]] = {}
    other_names: dict[str, str] = {}
    requested = None if only is None else set(only)
    for pair, how in comparison.comparable_pairs:
        for name, first, second in _split_experts(comparison, pair) if slab is None else [_whole(pair)]:
            if (first.nbytes > LARGE_BYTES and slab is None) or (requested is not None and name not in requested):
                continue
            part = slab if len(first.shape) > 1 else None
            expected[name] = partial(_read_bits, files[0], first, how.target, part)
            actual[name] = partial(_read_bits, files[1], second, how.target, part)
            before = previous_version[1].get(name) if previous_version is not None else None
            if previous_version is not None and before is not None and before.shape == first.shape:
                previous[name] = partial(_read_bits, previous_version[0], before, how.target, part)
            if comparison.first.is_megatron or comparison.second.is_megatron:
                other_names[name] = pair.names[0 if comparison.first.is_megatron else 1]
    targets = {how.first: how.target for _, how in comparison.comparable_pairs}
    # The numbers of a missing tensor may stand under another name.
    for name in comparison.match_result.missing:
        layout = comparison.first.stored.get(name)
        if layout is not None and layout.nbytes <= LARGE_BYTES and slab is None and not comparison.first.is_megatron:
            expected.setdefault(
                _usual_name(name), partial(_read_bits, files[0], layout, targets.get(layout.dtype, layout.dtype), None)
            )
    dimensions = comparison.dimensions
    geometry = AttentionGeometry(dimensions.heads, dimensions.kv_heads, dimensions.head_dim)
    return DiagnosisInput(expected, actual, previous, geometry, other_names)


def _usual_name(name: str) -> str:
    """Return a name in the form that most families use. Mixtral calls gate, down and up of an expert w1, w2 and w3."""
    if ".block_sparse_moe." in name:
        for mixtral, usual in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")):
            name = name.replace(f".{mixtral}.weight", f".{usual}.weight")
    return name.replace(".block_sparse_moe.", ".mlp.")


def _read_bits(
    files: TensorFiles, layout: TensorLayout, target: str, slab: chunked_diagnosis.Slab | None
) -> TensorBits:
    """Read a tensor, or a slab of it, cast to the dtype in which the two sides are compared."""
    return TensorBits(
        target,
        cast_patterns(
            files.read_tensor(layout) if slab is None else chunked_diagnosis.read_slab(files, layout, slab),
            layout.dtype,
            target,
        ),
    )
