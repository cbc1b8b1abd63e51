"""Pairs the tensors of two checkpoints. Every tensor of both sides ends up in exactly one account of the result."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.compare.bridge.family_table import FamilyTable, TableEntry, find_original, split_tensor
from ckptcheck.compare.bridge.hf_names import normalize_hf_name
from ckptcheck.compare.bridge.model_dimensions import ModelDimensions
from ckptcheck.compare.bridge.tensor_layout import LayoutError, TensorLayout
from ckptcheck.compare.matching.side import ComparisonSide

if TYPE_CHECKING:
    from ckptcheck.compare.matching.quantized.weight import QuantizedWeight

MEGATRON_HEAD, MEGATRON_EMBEDDING = "output_layer.weight", "embedding.word_embeddings.weight"
"""Megatron's names of the LM head and the embedding, for families without a table."""
LEAST_MOVED = 3
"""Tensors that a part under another prefix has at least: one or two names may agree by chance."""


class TensorPair(msgspec.Struct, frozen=True):
    """Two tensors, or parts of tensors, that should be equal."""

    # The plain Hugging Face name.
    name: str
    # The stored names of both sides.
    names: tuple[str, str]
    first: TensorLayout | QuantizedWeight
    second: TensorLayout | QuantizedWeight

    @property
    def has_equal_shapes(self) -> bool:
        """Whether the shapes are equal. An unsupported quantized weight has no known shape and counts as equal."""
        is_unknown = any(
            not isinstance(side, TensorLayout) and side.unsupported_reason for side in (self.first, self.second)
        )
        return is_unknown or self.first.shape == self.second.shape


class MatchResult(msgspec.Struct):
    """The account of every tensor of both sides."""

    # Pairs of equal shape, which are compared.
    pairs: list[TensorPair] = msgspec.field(default_factory=list)
    # Name → the other side's tensor that it duplicates; that pair is in `pairs` as well.
    aliased: dict[str, str] = msgspec.field(default_factory=dict)
    # Plain name → stored name, of tensors that only the first side has.
    missing: dict[str, str] = msgspec.field(default_factory=dict)
    # The same of tensors that only the second side has.
    extra: dict[str, str] = msgspec.field(default_factory=dict)
    # The same of heads that a critic has or lacks by design.
    heads: dict[str, str] = msgspec.field(default_factory=dict)
    # Pairs of unequal shape.
    shape_mismatches: list[TensorPair] = msgspec.field(default_factory=list)
    # (prefix in the first, prefix in the second) → names of tensors that only these tell apart.
    moved: dict[tuple[str, str], list[str]] = msgspec.field(default_factory=dict)
    # (side 0 or 1, stored name) → why the tensor does not fit the layout of the table.
    layout_errors: dict[tuple[int, str], str] = msgspec.field(default_factory=dict)
    # Plain name → rows of vocabulary padding that are left out.
    padding_rows: dict[str, int] = msgspec.field(default_factory=dict)
    # Pairs that a table or a rename brought together.
    bridged_count: int = 0


PlainTensors = dict[str, "tuple[str, TensorLayout | QuantizedWeight]"]
"""Plain name → the stored name, and the tensor or quantized weight."""


def match_tensors(
    first: ComparisonSide, second: ComparisonSide, table: FamilyTable | None, *, critic: bool = False
) -> MatchResult:
    """Pair the tensors of two sides by name, and where names differ by the table of the family.

    Args:
        first: the reference.
        second: the side that is compared with it.
        table: maps stored names and layouts to the plain Hugging Face form.
        critic: one side is a critic, so LM heads and value heads may be on one side only.
    """
    result = MatchResult()
    direct_names = _find_direct_names(first, second)
    result.pairs += (TensorPair(name, (name, name), first.stored[name], second.stored[name]) for name in direct_names)
    dimensions = first.dimensions if first.dimensions.heads else second.dimensions
    ours, theirs = (
        _split_remaining(side, number, direct_names, table, dimensions, result)
        for number, side in enumerate((first, second))
    )
    if critic:
        for side, plain in ((first, ours), (second, theirs)):
            _rename_heads_in_output(side, plain)
    for name in [name for name in ours if name in theirs]:
        _add_pair(result, first, second, name, ours.pop(name), theirs.pop(name))
    paired = {name: pair for pair in result.pairs for name in (pair.name, normalize_hf_name(pair.name))}
    for one_side, other_side, remaining, swapped in ((first, second, ours, False), (second, first, theirs, True)):
        _pair_duplicates(result, paired, one_side, other_side, remaining, swapped, table)
    if result.pairs:  # a prefix before all names is CMP006's
        _pair_moved(result, first, second, ours, theirs)
    if critic:
        lm_heads = (first.head, second.head, MEGATRON_HEAD)
        result.heads = {
            name: stored
            for remaining in (ours, theirs)
            for name, (stored, _) in remaining.items()
            if name in lm_heads or is_value_head(name)
        }
    result.missing = {name: stored for name, (stored, _) in ours.items() if name not in result.heads}
    result.extra = {name: stored for name, (stored, _) in theirs.items() if name not in result.heads}
    return result


def _pair_moved(
    result: MatchResult, first: ComparisonSide, second: ComparisonSide, ours: PlainTensors, theirs: PlainTensors
) -> None:
    """Pair the tensors of a part that lies under another prefix on the other side (huggingface/transformers#45357)."""
    by_end: dict[str, list[str]] = {}
    for name in theirs:
        words = name.split(".")
        for start in range(len(words) - 1):
            by_end.setdefault(".".join(words[start:]), []).append(name)
    moves: dict[tuple[str, ...], dict[str, str]] = {}
    taken: set[str] = set()
    for name, (_, tensor) in ours.items():
        words = name.split(".")
        for start in range(len(words) - 1):
            end = ".".join(words[start:])
            found = [other for other in by_end.get(end, ()) if theirs[other][1].shape == tensor.shape]
            if len(found) > 1:  # one in each layer, where a module of the layers has another name
                found = [other for other in found if INDEX.findall(other) == INDEX.findall(name)]
            if len(found) == 1 and found[0] not in taken:
                prefixes = ".".join(words[:start]), found[0].removesuffix(end).removesuffix(".")
                move = tuple(INDEX.sub("{}", f"{each}.") for each in prefixes)
                moves.setdefault(move, {})[name] = found[0]
                taken.add(found[0])
                break
    claimed = taken.union(*moves.values())
    for (before, after), pairs in moves.items():
        if len(pairs) >= LEAST_MOVED:
            found_too = _follow(before, after, ours, theirs)
            pairs |= {name: other for name, other in found_too.items() if claimed.isdisjoint((name, other))}
            names = [(ours[name][0], theirs[other][0]) for name, other in pairs.items()]
            result.moved[_name_part(names)] = [name for name, _ in names]
            for name, other in pairs.items():
                _add_pair(result, first, second, name, ours.pop(name), theirs.pop(other))


def _follow(before: str, after: str, ours: PlainTensors, theirs: PlainTensors) -> dict[str, str]:
    """Return the tensors of a part that moved, also those that show no move: `A_log` is one word behind its module."""
    found: dict[str, str] = {}
    start = before.count(".")
    for name, (_, tensor) in ours.items():
        words = name.split(".")
        prefix = "".join(f"{word}." for word in words[:start])
        numbers, (head, *pieces) = INDEX.findall(prefix), after.split("{}")
        if INDEX.sub("{}", prefix) == before and len(numbers) == len(pieces):
            filled = (number + piece for number, piece in zip(numbers, pieces, strict=True))
            other = "".join([head, *filled, ".".join(words[start:])])
            if other in theirs and theirs[other][1].shape == tensor.shape:
                found[name] = other
    return found


def _name_part(names: list[tuple[str, str]]) -> tuple[str, str]:
    """Return what the names of a part begin with on both sides: the words that they do not share, and those that all have."""
    ours, theirs = ([INDEX.sub("{}", pair[side]).split(".") for pair in names] for side in (0, 1))
    ends = [len(_share([one[::-1], other[::-1]])) for one, other in zip(ours, theirs, strict=True)]
    inner = _share([one[len(one) - end :] for one, end in zip(ours, ends, strict=True)])
    return tuple(".".join([*side[0][: len(side[0]) - ends[0]], *inner]) for side in (ours, theirs))  # type: ignore[return-value]


def _share(lists: list[list[str]]) -> list[str]:
    """Return the words with which all lists begin."""
    return [words[0] for words in takewhile(lambda words: len({*words}) == 1, zip(*lists, strict=False))]


def is_value_head(name: str) -> bool:
    """Whether a plain name belongs to a value, reward or classification head."""
    return name.rpartition(".")[0].rpartition(".")[2] in ("score", "classifier", "qa_outputs")


def is_value_head_in_output_layer(side: ComparisonSide, name: str, layout: TensorLayout) -> bool:
    """Whether a tensor is a value head stored as Megatron's output layer, as verl's critics do (LinearForLastLayer)."""
    return side.is_megatron and name == MEGATRON_HEAD and len(layout.shape) == 2 and layout.shape[0] == 1


def _rename_heads_in_output(side: ComparisonSide, plain: PlainTensors) -> None:
    """Give a value head stored as the output layer the name that other critics use."""
    for name, (stored, _) in list(plain.items()):
        if stored == MEGATRON_HEAD and is_value_head_in_output_layer(side, stored, side.stored[stored]):
            plain.setdefault("score.weight", plain.pop(name))


def _find_direct_names(first: ComparisonSide, second: ComparisonSide) -> set[str]:
    """Return the names that need no bridge: both sides store them with the same shape and, if quantized, the same dtype."""
    if first.is_megatron != second.is_megatron:
        return set()
    return {
        name
        for name, layout in first.stored.items()
        if (other := second.stored.get(name)) is not None
        and other.shape == layout.shape
        and (name in first.quantized_parts) == (name in second.quantized_parts)
        and (name not in first.quantized_parts or layout.dtype == other.dtype)
    }


def _split_remaining(
    side: ComparisonSide,
    number: int,
    direct_names: set[str],
    table: FamilyTable | None,
    dimensions: ModelDimensions,
    result: MatchResult,
) -> PlainTensors:
    """Return the other tensors of a side under their plain names."""
    entries: Mapping[str, TableEntry] = {}
    if table is not None:
        entries = table.megatron if side.is_megatron else table.variants
    plain: PlainTensors = {}
    for name, layout in side.stored.items():
        if name in direct_names or name in side.quantized_parts:
            continue
        try:
            parts = split_tensor(entries, name, layout, dimensions)
        except LayoutError as error:
            result.layout_errors[number, name] = str(error)
            continue
        for part, tensor in (parts or {normalize_hf_name(name): layout}).items():
            if part in plain:
                result.layout_errors[number, name] = f"it and {plain[part][0]} both map to {part}"
            else:
                plain[part] = (name, tensor)
    for name, packed in side.quantized.items():
        if all(stored in direct_names for stored in packed.names):
            continue
        try:
            experts = packed.split(partial(split_tensor, entries, name, dimensions=dimensions))
        except LayoutError as error:
            result.layout_errors[number, packed.names[0]] = str(error)
            continue
        plain |= {
            part: (packed.names[0], tensor) for part, tensor in (experts or {normalize_hf_name(name): packed}).items()
        }
    return plain


def _add_pair(
    result: MatchResult,
    first: ComparisonSide,
    second: ComparisonSide,
    name: str,
    ours: tuple[str, TensorLayout | QuantizedWeight],
    theirs: tuple[str, TensorLayout | QuantizedWeight],
) -> None:
    """Pair two tensors. Rows that pad Megatron's vocabulary are left out; other differences of shape are recorded."""
    layouts = [ours[1], theirs[1]]
    for at, (side, other) in enumerate(((first, second), (second, first))):
        own, counterpart = layouts[at], layouts[1 - at]
        if (
            side.is_megatron
            and not other.is_megatron
            and name in (other.embedding, other.head)
            and isinstance(own, TensorLayout)
        ):
            surplus = own.shape[0] - counterpart.shape[0] if own.shape and counterpart.shape else 0
            if surplus > 0 and own.shape[1:] == counterpart.shape[1:]:
                layouts[at] = own.cut(0, 0, counterpart.shape[0])
                result.padding_rows[name] = surplus
    pair = TensorPair(name, (ours[0], theirs[0]), *layouts)
    (result.pairs if pair.has_equal_shapes else result.shape_mismatches).append(pair)
    result.bridged_count += pair.has_equal_shapes


def _pair_duplicates(
    result: MatchResult,
    paired: Mapping[str, TensorPair],
    side: ComparisonSide,
    other: ComparisonSide,
    remaining: PlainTensors,
    swapped: bool,
    table: FamilyTable | None,
) -> None:
    """Pair a tensor that only one side stores with the tensor of the other side that it duplicates: a tied head, a copy for MTP."""
    copies = table.copies if table is not None else {}
    for name in list(remaining):
        original = find_original(copies, name)
        if (name == side.head or original == side.head) and original not in paired and other.tied:
            original = other.embedding
        if original is None or original not in paired:
            continue
        stored, layout = remaining[name]
        pair = paired[original]
        counterpart = pair.first if swapped else pair.second
        counterpart_name = pair.names[0] if swapped else pair.names[1]
        if (
            isinstance(layout, TensorLayout)
            and isinstance(counterpart, TensorLayout)
            and layout.shape != counterpart.shape
            and side.is_megatron
        ):
            result.padding_rows[name] = layout.shape[0] - counterpart.shape[0]
            layout = layout.cut(0, 0, min(counterpart.shape[0], layout.shape[0]))
        ours, theirs = (stored, layout), (counterpart_name, counterpart)
        if swapped:
            ours, theirs = theirs, ours
        alias = TensorPair(name, (ours[0], theirs[0]), ours[1], theirs[1])
        (result.pairs if alias.has_equal_shapes else result.shape_mismatches).append(alias)
        result.aliased[name] = counterpart_name
        del remaining[name]
