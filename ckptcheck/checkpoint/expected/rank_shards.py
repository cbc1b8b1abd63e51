"""Finds tensors that are one rank's shards: flat pieces, or equal parts along one dimension, of what the model has."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from math import prod
from pathlib import PurePosixPath

import msgspec

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.expected.fault import Explained, Fault
from ckptcheck.checkpoint.expected.shapes import iter_expected, read_sizes
from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.checkpoint.packing import has_own_shape
from ckptcheck.checkpoint.weights_table import WeightsTable
from ckptcheck.linter.rule import Problem
from ckptcheck.text.formatting import count, format_shape

LEAST_KINDS = 2
"""Kinds of tensors that are parts at least: one alone was rather cut."""
LEAST_FLAT = 8
"""Tensors of a model that are all flat: a state with fewer may be no model."""
LEAST_SETTINGS = 3
"""Settings that are all too large by one factor, where no tensor contradicts them: a config is not wrong by that."""


RANK = re.compile(r"(?:rank|consolidated)[._-]?(\d+)", re.IGNORECASE)
"""A rank in the name of a file or folder: mp_rank_01, model_world_size_4_rank_1 (FSDP in verl), consolidated.01 (Meta)."""


class _Odd(msgspec.Struct, frozen=True):
    """The tensors of one name but for its numbers, and their shapes."""

    names: tuple[str, ...]
    stored: tuple[int, ...]
    expected: tuple[int, ...]


def find_rank_shards(ckpt: Checkpoint, explained: Explained) -> Iterator[Fault]:
    """Yield one fault for all tensors that are parts of the same number of ranks.

    A Megatron-FSDP export wrote the flat shard of each parameter (ISEEKYAN/Megatron-LM#104); an export at tensor parallelism of 2
    counted Mamba's vectors as replicated, and wrote rank 0's half (NVIDIA/Model-Optimizer#931).
    """
    table, config = WeightsTable.of_layers(ckpt.config), ckpt.config
    if config is None:
        return
    problem: Problem | None
    found: dict[tuple[str, tuple[int, ...], tuple[int | None, ...]], list[str]] = {}
    if table is not None and config.resolved is not None:
        method = ckpt.quantization.method if ckpt.quantization is not None else None
        size_of, choose_sizes, wide = read_sizes(ckpt, config.resolved)
        for name, tensor, wanted in iter_expected(ckpt, table, choose_sizes, wide):
            if has_own_shape(tensor, method) and 0 not in tensor.shape:
                found.setdefault((INDEX.sub("{}", name), tensor.shape, wanted), []).append(name)
    is_flat = all(len(shape) <= 1 for forms in ckpt.forms_by_template.values() for _, shape in forms)
    # norms alone are flat in any model
    if len(ckpt.tensors) >= LEAST_FLAT and is_flat and (not found or any(len(wanted) > 1 for *_, wanted in found)):
        problem = _describe_flat(ckpt, [(stored, wanted) for _, stored, wanted in found])
    elif table is not None and found:
        odd: list[_Odd] = []
        for (_, stored, wanted), names in found.items():
            if len(wanted) != len(stored):
                return
            # a size that the table does not know counts as right
            expected = tuple(own if size is None else size for size, own in zip(wanted, stored, strict=True))
            if expected != stored:
                odd.append(_Odd(tuple(names), stored, expected))
        if len(odd) < LEAST_KINDS:
            problem = None
        elif all(kind.stored == (prod(kind.expected) // 2, 1) for kind in odd):
            problem = _describe_columns(ckpt, odd)
        else:
            problem = _describe_parts(ckpt, table, size_of, odd)
    else:
        return
    if problem is not None:
        explained.tensors.update(problem.names)
        yield Fault("shape", problem)


def _describe_flat(ckpt: Checkpoint, compared: list[tuple[tuple[int, ...], tuple[int | None, ...]]]) -> Problem:
    """Return the problem of a checkpoint whose tensors are all flat. The last shard of a tensor may end with padding."""
    ranks = Counter[int]()
    pairs: list[tuple[int, int]] = []
    for stored, wanted in compared:
        sizes = [size for size in wanted if size is not None]
        if len(sizes) == len(wanted) and stored:
            pairs.append((stored[0], prod(sizes)))
            ranks[-(-prod(sizes) // stored[0])] += 1
    number = ranks.most_common(1)[0][0] if ranks else 0
    largest = max(ckpt.tensors, key=lambda name: prod(ckpt.tensors[name].shape))
    reason, unknown = ", as shards of ranks are before they are joined", ""
    if number > 1:
        who, unknown = _name_rank(ckpt, number, "ranks", pairs)
        reason = f", and 1/{number} of what the model has: they are the shards of {who}"
    return Problem(
        f"all {len(ckpt.tensors):,} tensors are flat{reason}",
        file=ckpt.tensor_to_file[largest],
        key=largest,
        hint=f"export again, and gather each parameter from all ranks in its own shape first{unknown}",
        names=tuple(ckpt.tensors),
    )


def _describe_columns(ckpt: Checkpoint, odd: list[_Odd]) -> Problem:
    """Return the problem of matrices in one column of half as many numbers: bitsandbytes packs two of 4 bits in a byte."""
    first, names = odd[0].names[0], tuple(name for kind in odd for name in kind.names)
    return Problem(
        f"{count(len(names), 'matrix', 'matrices')} are one column of half as many numbers as the model has, this one "
        f"{format_shape(odd[0].stored)} for {format_shape(odd[0].expected)}: they are 4-bit numbers of bitsandbytes, labelled "
        f"{ckpt.tensors[first].dtype}",
        file=ckpt.tensor_to_file[first],
        key=first,
        hint="save the model again, with their quant states and quantization_config, or dequantized",
        names=names,
    )


def _describe_parts(
    ckpt: Checkpoint,
    table: WeightsTable,
    size_of: Callable[[str], int | None],
    odd: list[_Odd],
) -> Problem | None:
    """Return the problem of tensors that are all the same part along one dimension, unless one wrong setting may explain them."""
    strange = {INDEX.sub("{}", kind.names[0]) for kind in odd}
    kinds = ((names[0], INDEX.sub("{}", names[0])) for names in ckpt.layout.names_by_template.values())
    fitting = [(name, len(ckpt.tensors[name].shape)) for name, kind in kinds if kind in table.shapes.keys() - strange]
    parts = Counter(
        expected // stored
        for kind in odd
        for stored, expected in zip(kind.stored, kind.expected, strict=True)
        if stored != expected and expected % stored == 0
    )
    ranks = parts.most_common(1)[0][0] if parts else 0
    decisive: list[frozenset[str]] = []
    is_first = True
    for kind in odd:
        axes = [axis for axis, (one, two) in enumerate(zip(kind.stored, kind.expected, strict=True)) if one != two]
        if ranks < 2 or len(axes) != 1 or not _is_part(kind.stored[axes[0]], kind.expected[axes[0]], ranks):
            return None
        is_first = is_first and axes[0] == 0
        decisive.append(frozenset(table.fields_of(kind.names[0], axes[0], size_of)))
    fields = frozenset[str]().union(*decisive)
    fit_fields = {
        field for name, rank in fitting for axis in range(rank) for field in table.fields_of(name, axis, size_of)
    }
    # one size that other tensors contradict is no setting's fault, and those with the same factor share its cause
    is_contradicted = any(own and own <= fit_fields for own in decisive)
    if not is_contradicted and len(fields - fit_fields) < LEAST_SETTINGS:
        return None
    first = odd[0]
    names = tuple(name for kind in odd for name in kind.names)
    # tensor parallelism leaves norms whole; FSDP cuts every parameter along its first dimension
    is_of_all = is_first and not is_contradicted and any(len(kind.expected) == 1 for kind in odd)
    parallel = "" if is_of_all else "tensor-parallel "
    cut = [pair for kind in odd for pair in zip(kind.stored, kind.expected, strict=True) if pair[0] != pair[1]]
    who, unknown = _name_rank(ckpt, ranks, f"{parallel}ranks", cut)
    return Problem(
        f"{count(len(names), 'tensor')} are 1/{ranks} of what the model has along one dimension, this one "
        f"{format_shape(first.stored)} for {format_shape(first.expected)}"
        f"{', while others that the same settings size are whole' if is_contradicted else ''}: they are the shards of {who}",
        file=ckpt.tensor_to_file[first.names[0]],
        key=first.names[0],
        hint=f"export again, and gather these tensors from all {parallel}ranks{unknown}",
        names=names,
    )


def _name_rank(ckpt: Checkpoint, ranks: int, kind: str, sizes: list[tuple[int, int]]) -> tuple[str, str]:
    """Return which of the ranks wrote the shards, and what to add to the hint where nothing tells it.

    sizes: of each cut dimension the stored and the whole size. Of sizes that the ranks do not divide, the last one has the rest.
    """
    names = {PurePosixPath(file).name for file in ckpt.tensor_to_file.values()}
    for places in (names, {PurePosixPath(ckpt.target).name}):
        found = {match[1] if (match := RANK.search(place)) is not None else "" for place in places}
        if len(found) == 1 and (number := found.pop()) and int(number) < ranks:
            return f"rank {int(number)} of {ranks} {kind}, as {min(places)} says", ""
    uneven = [stored < -(-whole // ranks) for stored, whole in sizes if whole % ranks and ranks > 1]
    if uneven and all(uneven):
        return f"the last of {ranks} {kind}, which has what the others leave", ""
    return f"one of {ranks} {kind}", "; which rank wrote these, neither file names nor shapes tell"


def _is_part(stored: int, expected: int, ranks: int) -> bool:
    """Whether a rank may hold so many rows: an even share, or a share of torch.chunk, whose last one is smaller."""
    share = -(-expected // ranks)
    return stored in (expected // ranks, share, expected - (ranks - 1) * share)
