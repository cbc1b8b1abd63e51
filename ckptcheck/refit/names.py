"""One weight, three names: the engine's, the checkpoint's, and the trainer's own with the ranks that hold it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod

from ckptcheck.dialects.made import parts
from ckptcheck.phrase import ranges
from ckptcheck.refit.trace import RefitTrace
from ckptcheck.trainers.base import Weight
from ckptcheck.trainers.layout import Layout

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
DRAFT = "draft:"


def sources(name: str, weights: Mapping[str, Weight]) -> tuple[Weight, ...]:
    """Return the weights of the trainer that an engine's tensor is made of, in its order of elements; () if unknown."""
    plain = name.removeprefix(DRAFT)
    found = parts(plain, weights)
    if not found and plain.startswith("lm_head."):  # what is derived from the head; a tied one is the embedding
        found = (HEAD,) if HEAD in weights else (EMBEDDING,)
    return tuple(weights[each] for each in found if each in weights)


def origin(trace: RefitTrace, names: Sequence[str], hit: Iterable[tuple[int, int]] = (), total: int = 0) -> str:
    """Say what the first of these tensors of the engine is in the checkpoint and in the trainer, to end a message with.

    hit: [begin, end) of its flat elements that matter, of `total` on one rank; only the weights that lie there are named.
    "" where the names are the same, or the engine's are unknown.
    """
    made_of = sources(names[0], {weight.name: weight for weight in trace.weights})
    if not made_of:
        return ""
    which = "the first" if len(names) > 1 else "it"
    if hit and len(made_of) > 1:
        made_of, which = _lying(made_of, hit, total, trace.engine.ranks if trace.engine else 1), "that"
    said = [weight.name for weight in made_of]
    made = (
        "" if said == [names[0].removeprefix(DRAFT)] else f"{'is' if which == 'that' else 'is made of'} {braced(said)}"
    )
    own = sorted({each for weight in made_of for each in weight.own} - set(said))
    if not own or trace.trainer is None:
        return f"; {which} {made}" if made else ""
    owners = {rank for weight in made_of for rank in weight.owners}
    place = Layout.named(trace.trainer.layout).places(owners)
    held = f"{trace.trainer.name} holds as {braced(own)}" + (f" ({place})" if place else "")
    return f"; {which} {made}, which {held}" if made else f"; {which} is what {held}"


def unmatched(trace: RefitTrace) -> list[str] | None:
    """Return the weights that were sent and that no tensor of the engine is made of; None where names tell nothing.

    A weight whose bytes the engine holds under another name is there. Where most names match nothing, the engine has names
    of its own.
    """
    sync = next((sync for sync in trace.syncs if sync.manifest), None)
    if sync is None or not trace.weights:
        return None
    weights = {weight.name: weight for weight in trace.weights}
    held = {entry.digest for entry in sync.manifest.values()}
    names = {name for _, name in (*trace.cold, *sync.manifest)}  # what the update took away it had a place for
    there = {weight.name for name in names for weight in sources(name, weights)}
    lost = [name for name in weights if name not in there and sync.sent.get(name) not in held]
    return None if 2 * len(lost) > len(weights) else lost


def braced(names: Collection[str]) -> str:
    """Write names that differ in a few parts as one.

    >>> braced(["a.0.q.weight", "a.0.k.weight"]), braced(["e.0.up.w", "e.1.up.w", "e.2.up.w"]), braced(["a.b", "c"])
    ('a.0.{q,k}.weight', 'e.{0-2}.up.w', 'a.b, c')
    """
    split = [name.split(".") for name in names]
    if len({len(parts) for parts in split}) > 1:
        return ", ".join(names)
    columns = [list(dict.fromkeys(column)) for column in zip(*split, strict=True)]
    if prod(map(len, columns)) != len(set(names)):
        return ", ".join(names)
    return ".".join(column[0] if len(column) == 1 else "{" + _listed(column) + "}" for column in columns)


def _listed(parts: Sequence[str]) -> str:
    return ranges(map(int, parts)) if all(part.isdecimal() for part in parts) else ",".join(parts)


def _lying(parts: Sequence[Weight], hit: Iterable[tuple[int, int]], total: int, ranks: int) -> tuple[Weight, ...]:
    """Return the parts that lie in some of the runs; all where a rank does not hold an even share of each."""
    if sum(prod(weight.shape) for weight in parts) != total * ranks:
        return tuple(parts)
    runs, found, at = list(hit), [], 0
    for weight in parts:
        end = at + prod(weight.shape) // ranks
        if any(begin < end and last > at for begin, last in runs):
            found.append(weight)
        at = end
    return tuple(found)
