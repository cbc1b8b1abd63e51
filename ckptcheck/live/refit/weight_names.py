"""The names of a weight in the engine, in the checkpoint, and in the trainer with the ranks that hold it; and the parts of what an
engine fuses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from ckptcheck.consumers.engine_tensors import EXPERTS_TENSOR, find_source_tensors
from ckptcheck.live.refit.observations import DRAFT, Key, Observations
from ckptcheck.live.runtime.trainers.base import Weight
from ckptcheck.live.runtime.trainers.layout import ParallelLayout
from ckptcheck.text.formatting import format_ranges, join_truncated

if TYPE_CHECKING:
    from ckptcheck.compare.diagnosis import TensorBits

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
EXPERT_NUMBER = re.compile(r"\.experts\.(\d+)\.")
Read = Callable[[], "TensorBits"]


def trainer_weights(name: str, weights: Mapping[str, Weight]) -> tuple[Weight, ...]:
    """Return the trainer's weights that an engine tensor is built from, in its order of elements; () if unknown."""
    plain = name.removeprefix(DRAFT)
    sources = find_source_tensors(plain, weights)
    # tensors that the engine derives from the head; the head of a tied model is the embedding
    if not sources and plain.startswith("lm_head."):
        sources = (HEAD,) if HEAD in weights else (EMBEDDING,)
    # a state-space layer keeps the negated exponential of what the checkpoint has
    if not sources and plain.endswith(".A"):
        sources = find_source_tensors(f"{plain}_log", weights)
    return tuple(weights[source] for source in sources if source in weights)


def has_whole_experts(name: str, shape: Sequence[int], sources: Iterable[Weight]) -> bool:
    """Return whether a rank holds some experts whole, as in expert parallelism, in an engine's tensor of all experts."""
    numbers = {match[1] for source in sources if (match := EXPERT_NUMBER.search(source.name))}
    return (
        EXPERTS_TENSOR.fullmatch(name.removeprefix(DRAFT)) is not None and bool(shape) and 0 < shape[0] < len(numbers)
    )


def describe_part_origin(trace: Observations, parts: Collection[str], engine_names: Sequence[str]) -> str:
    """Describe where tensors of the checkpoint lie in the engine and in the trainer, to end a message that names them with.

    Returns "" where both use the checkpoint's names.
    """
    by_name = {weight.name: weight for weight in trace.weights}
    weights = [by_name[name] for name in parts if name in by_name]
    fused = sorted(set(engine_names) - set(parts))
    pronoun = "it" if len(parts) == 1 else "them"
    origin = f"; the engine holds {pronoun} in {join_truncated(fused)}" if fused else ""
    trainer, place = _describe_trainer_place(trace, weights, parts)
    if not place:
        return origin
    return f"{origin}, and {trainer} as {place}" if origin else f"; {trainer} holds {pronoun} as {place}"


def _describe_trainer_place(
    trace: Observations, weights: Iterable[Weight], known_names: Iterable[str]
) -> tuple[str, str]:
    """Return the trainer, and under which names which of its ranks hold these weights; "" where it uses the known names."""
    names = sorted({name for weight in weights for name in weight.trainer_names} - set(known_names))
    if not names or trace.trainer is None:
        return "", ""
    owners = (rank for weight in weights for rank in weight.owner_ranks)
    ranks = ParallelLayout.parse(trace.trainer.layout).describe_ranks(owners)
    return trace.trainer.name, join_names(names) + (f" ({ranks})" if ranks else "")


def describe_origin(
    trace: Observations, names: Sequence[str], spans: Iterable[tuple[int, int]] = (), total: int = 0
) -> str:
    """Describe what the first of these engine tensors is in the checkpoint and in the trainer, to end a message with.

    spans: [begin, end) of the flat elements that matter, of `total` on one rank; only weights that lie there are named.
    Returns "" if the trainer and the checkpoint use the engine's name, or if the engine's names are unknown.
    """
    weights, is_part = weights_within(trace, names[0], spans, total)
    if not weights:
        return ""
    subject = "that" if is_part else "the first" if len(names) > 1 else "it"
    verb = "is" if is_part else "is built from"
    checkpoint_names = [weight.name for weight in weights]
    is_same_name = checkpoint_names == [names[0].removeprefix(DRAFT)]
    source = "" if is_same_name else f"; {subject} {verb} {join_names(checkpoint_names)}"
    trainer, place = _describe_trainer_place(trace, weights, checkpoint_names)
    if not place:
        return source
    return f"; {trainer} holds {subject} as {place}" if is_same_name else f"{source}, which {trainer} holds as {place}"


def weights_within(
    trace: Observations, name: str, spans: Iterable[tuple[int, int]], total: int
) -> tuple[tuple[Weight, ...], bool]:
    """Return the trainer's weights that lie in these elements of an engine tensor, and whether they were chosen by that.

    spans: see `describe_origin`. Without any, and where experts are whole on a rank, these are all that it is built from.
    """
    weights = trainer_weights(name, {weight.name: weight for weight in trace.weights})
    shape = next((entry.shape for (_, own), entry in trace.cold_manifest.items() if own == name), ())
    if not spans or len(weights) < 2 or has_whole_experts(name, shape, weights):
        return weights, False
    ranks = trace.engine.ranks if trace.engine else 1
    is_padded = EXPERTS_TENSOR.fullmatch(name.removeprefix(DRAFT)) is not None and not total % len(weights)
    # the parts of experts are alike, so padding makes them no less so
    sizes = [total // len(weights)] * len(weights) if is_padded else [prod(each.shape) // ranks for each in weights]
    return _overlapping(weights, spans, total, sizes), True


def describe_ranks(trace: Observations, keys: Iterable[Key], *, always: bool = False) -> str:
    """Describe on which of the engine's ranks these tensors are wrong, to end a message with.

    Returns "" for an engine of one rank, and unless `always`, where all ranks are wrong.
    """
    total = trace.engine.ranks if trace.engine is not None else 1
    ranks = sorted({rank for rank, _ in keys})
    if total == 1 or (len(ranks) == total and not always):
        return ""
    return f"; on rank{'s' if len(ranks) > 1 else ''} {format_ranges(ranks)} of {total}"


def unmatched_weights(trace: Observations) -> list[str] | None:
    """Return the sent weights that no tensor of the engine is built from; None if names tell nothing.

    A weight counts as matched if the engine holds its bytes under another name. If most names match nothing, the engine
    has its own naming.
    """
    sync = next((sync for sync in trace.syncs if sync.manifest), None)
    if sync is None or not trace.weights:
        return None
    weights = {weight.name: weight for weight in trace.weights}
    engine_digests = {entry.digest for entry in sync.manifest.values()}
    # the cold manifest too: the engine had a place for a tensor that the update removed
    engine_names = {name for _, name in (*trace.cold_manifest, *sync.manifest)}
    matched = {weight.name for name in engine_names for weight in trainer_weights(name, weights)}
    unmatched = [name for name in weights if name not in matched and sync.sent.get(name) not in engine_digests]
    return None if 2 * len(unmatched) > len(weights) else unmatched


def join_names(names: Collection[str]) -> str:
    """Join names that differ in a few parts into one.

    >>> join_names(["a.0.q.weight", "a.0.k.weight"]), join_names(["e.0.up.w", "e.1.up.w", "e.2.up.w"]), join_names(["a.b", "c"])
    ('a.0.{q,k}.weight', 'e.{0-2}.up.w', 'a.b, c')
    """
    split = [name.split(".") for name in names]
    if len({len(parts) for parts in split}) > 1:
        return ", ".join(names)
    columns = [list(dict.fromkeys(column)) for column in zip(*split, strict=True)]
    if prod(map(len, columns)) != len(set(names)):
        return ", ".join(names)
    return ".".join(column[0] if len(column) == 1 else "{" + _join_parts(column) + "}" for column in columns)


def _join_parts(parts: Sequence[str]) -> str:
    """Join parts of names: numbers as ranges, others with commas."""
    return format_ranges(map(int, parts)) if all(part.isdecimal() for part in parts) else ",".join(parts)


def _overlapping(
    weights: Sequence[Weight], spans: Iterable[tuple[int, int]], total: int, sizes: Sequence[int]
) -> tuple[Weight, ...]:
    """Return the weights that overlap the spans; all of them if a rank does not hold an even share of each.

    sizes: the elements that a rank holds of each.
    """
    if sum(sizes) != total:
        return tuple(weights)
    ranges, overlapping, begin = list(spans), [], 0
    for weight, size in zip(weights, sizes, strict=True):
        end = begin + size
        if any(first < end and last > begin for first, last in ranges):
            overlapping.append(weight)
        begin = end
    return tuple(overlapping)


@dataclass(frozen=True)
class TensorPart:
    """The part of an engine's tensor, on one rank, that one tensor of the checkpoint fills."""

    engine_name: str
    begin: int
    """First flat element."""
    shape: tuple[int, ...]
    pitch: int = 0
    """Elements from one row to the next, where the engine pads rows; 0 where it does not."""

    def extract(self, whole: TensorBits) -> TensorBits:
        """Return this part of the tensor."""
        from ckptcheck.compare.diagnosis import TensorBits

        flat = whole.patterns.reshape(-1)
        if self.pitch:
            rows, columns = self.shape
            padded = flat[self.begin : self.begin + rows * self.pitch].reshape(rows, self.pitch)
            return TensorBits(whole.dtype, padded[:, :columns].copy())
        return TensorBits(whole.dtype, flat[self.begin : self.begin + prod(self.shape)].reshape(self.shape))


def list_parts(
    name: str, shape: tuple[int, ...], ranks: int, weights: Mapping[str, Weight]
) -> Iterator[tuple[str, TensorPart]]:
    """Yield the checkpoint's tensors that an engine's tensor consists of, in its order of elements.

    name, shape: of the engine's tensor on one rank. ranks: of the engine. weights: what the trainer exports, by name. A tensor of
    which a rank does not hold an even share of each source, or whose sources are not known, is yielded whole under its own name.
    """
    sources = trainer_weights(name, weights)
    if has_whole_experts(name, shape, sources):
        yield name, TensorPart(name, 0, shape)
        return
    shares = [prod(source.shape) // ranks for source in sources]
    is_even = all(prod(source.shape) == share * ranks for source, share in zip(sources, shares, strict=True))
    if sum(prod(source.shape) for source in sources) == prod(shape):  # every rank holds all of it
        shares, is_even = [prod(source.shape) for source in sources], True
    if not sources or not shape or not is_even or sum(shares) != prod(shape) or any(s % shape[-1] for s in shares):
        yield from _list_padded_experts(name, shape, ranks, sources) or [(name, TensorPart(name, 0, shape))]
        return
    begin = 0
    for source, share in zip(sources, shares, strict=True):
        own = shape if len(sources) == 1 else (share // shape[-1], shape[-1])
        yield source.name, TensorPart(name, begin, own)
        begin += share


def _list_padded_experts(
    name: str, shape: tuple[int, ...], ranks: int, sources: Sequence[Weight]
) -> list[tuple[str, TensorPart]]:
    """Return the parts of stacked experts that an engine pads, [] for any other tensor.

    SGLang pads the width of experts on a CPU to a multiple of 32 (configs/update_config.py): gate and up each in rows of their
    own, down in its columns. Ranks hold rows of gate and up, and columns of down.
    """
    if len(shape) != 3 or EXPERTS_TENSOR.fullmatch(name.removeprefix(DRAFT)) is None or len(sources) % shape[0]:
        return []
    experts, rows, pitch = shape
    halves = len(sources) // experts
    found = []
    for number, source in enumerate(sources):
        own = list(source.shape)
        axis = 0 if halves == 2 else 1
        if len(own) != 2 or own[axis] % ranks or rows % halves:
            return []
        own[axis] //= ranks
        if own[0] > rows // halves or own[1] > pitch:
            return []
        found.append((source.name, TensorPart(name, number * (rows // halves) * pitch, (own[0], own[1]), pitch)))
    return found
