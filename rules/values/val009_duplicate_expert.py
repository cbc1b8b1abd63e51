"""Two experts of a layer, or their rows in the router, are the same, byte for byte.

## What it checks
No two experts of one layer have the same bytes in all their matrices, plain or packed. Where one tensor holds all experts of
a layer, no two of its slices are the same, unless they are zero. No router has the same row for two experts. On the Hub only
experts are compared that have tensors of their own, and of which at most four share the same statistics.

## Why it matters
Expert-parallel exports that write every rank's experts under the first rank's numbers, or overwrite one tensor again and
again, leave copies where other experts belong. Two experts with one row of the router score the same for every token: both
are chosen or neither.

## How to fix
Export again with global expert numbers.

## When it can be wrong
Models made sparse by copying a dense feed-forward block start with equal experts ("upcycling"), until they are trained. So do
experts that were replicated on purpose to balance the load of ranks; engines do that after loading, not in the file. A model
that was given more experts by copying has equal rows in its routers until it is trained on.
`--ignore VAL009`, or a reason under `[ignore]`, silences it.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1871
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.experts import fused_experts, numbered_experts
from ckptcheck.phrase import count, few
from ckptcheck.values.duplicates import layers
from ckptcheck.values.expert_copies import (
    Repeated,
    again,
    numbered_copies,
    router_copies,
    routers,
    stacked,
    stacked_copies,
)


@rule(
    "VAL009",
    "duplicate-expert",
    severity="warning",
    on="values",
    when=lambda ckpt: (
        any(True for experts in (numbered_experts, fused_experts) for _ in experts(ckpt.anatomy))
        or any(True for _ in stacked(ckpt))
    ),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    yield from _told(ckpt, numbered_copies(ckpt), "in {layers} {copies}, byte for byte", "expert")
    yield from _told(ckpt, stacked_copies(ckpt), "in {tensors} {copies}, byte for byte", "expert")
    yield from _told(
        ckpt,
        router_copies(ckpt),
        "in the router of {layers} {copies}: these experts score the same for every token",
        "row",
    )
    ckpt.require_values()
    if ckpt.source.local is None and any(True for names in (stacked, routers) for _ in names(ckpt)):
        raise Skip("experts in one tensor and rows of routers are not compared on the Hub")


def _told(ckpt: Checkpoint, found: Iterator[Repeated], text: str, whose: str) -> Iterator[Problem]:
    """One problem for all layers in which the same experts are the same others again."""
    alike: dict[str, list[Repeated]] = {}
    for repeated in found:
        alike.setdefault(again(repeated.copies, whose), []).append(repeated)
    for copies, each in list(alike.items())[:MOST]:
        keys = [repeated.key for repeated in each]
        tensors = "this tensor" if len(each) == 1 else f"{count(len(each), 'tensor')} ({few(keys)})"
        yield Problem(
            text.format(layers=layers([repeated.layer for repeated in each]), tensors=tensors, copies=copies),
            file=ckpt.holders.get(keys[0]) or ckpt.holder(keys[0]),
            key=keys[0],
            hint="export again with global expert numbers",
        )
    rest = [repeated.key for each in list(alike.values())[MOST:] for repeated in each]
    if rest:
        yield Problem(
            f"{count(len(rest), 'more layer repeats', 'more layers repeat')} other {whose}s: {few(rest)}",
            file=ckpt.holders.get(rest[0]) or ckpt.holder(rest[0]),
            key=rest[0],
            hint="export again with global expert numbers",
        )


MOST = 3
"""Kinds of copies that are told one by one."""
