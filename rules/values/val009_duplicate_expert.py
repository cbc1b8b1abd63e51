"""Two experts of a layer are the same, byte for byte.

## What it checks
- No two experts of a layer have the same bytes in all their matrices, plain or packed.
- Where one tensor holds all experts of a layer, no two of its slices are the same, unless they are zero.

On the Hub it compares only experts with tensors of their own, and only where at most four of them have equal statistics.

## Why it matters
Expert-parallel exports leave copies in place of other experts if they write every rank's experts under the first rank's numbers,
or overwrite one tensor again and again.

## How to fix
Export again with global expert numbers.

## When it can be wrong
- Models made sparse by copying a dense feed-forward block ("upcycling") have equal experts until they are trained.
- Experts that were replicated on purpose to balance the load of ranks are equal. Engines do that after loading, not in the file.
- `--ignore VAL009`, or a reason under `[ignore]`, silences it.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1871
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.experts import fused_experts, iter_numbered_experts
from ckptcheck.text.formatting import count, format_layers, join_truncated
from ckptcheck.values.detectors.duplicate_experts import (
    RepeatedExperts,
    describe_repeats,
    iter_repeated_numbered_experts,
    iter_repeated_stacked_experts,
    iter_stacked_experts,
)


@rule(
    "VAL009",
    "duplicate-expert",
    severity="warning",
    on="values",
    when=lambda ckpt: (
        any(True for experts in (iter_numbered_experts, fused_experts) for _ in experts(ckpt.components))
        or any(True for _ in iter_stacked_experts(ckpt))
    ),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    yield from _report(ckpt, iter_repeated_numbered_experts(ckpt), "in {layers} {copies}, byte for byte")
    yield from _report(ckpt, iter_repeated_stacked_experts(ckpt), "in {tensors} {copies}, byte for byte")
    ckpt.require_values()
    if not ckpt.can_sample:
        raise Skip("most experts are compared only on disk, and in an object store with --values")


def _report(ckpt: Checkpoint, repeats: Iterator[RepeatedExperts], text: str) -> Iterator[Problem]:
    """Yield one problem for all layers in which the same experts repeat the same others."""
    repeats_by_sentence: dict[str, list[RepeatedExperts]] = {}
    for repeated in repeats:
        repeats_by_sentence.setdefault(describe_repeats(repeated.copies), []).append(repeated)
    for copies, layers in list(repeats_by_sentence.items())[:MAX_KINDS]:
        keys = [repeated.key for repeated in layers]
        tensors = "this tensor" if len(layers) == 1 else f"{count(len(layers), 'tensor')} ({join_truncated(keys)})"
        yield Problem(
            text.format(layers=format_layers([repeated.layer for repeated in layers]), tensors=tensors, copies=copies),
            file=ckpt.tensor_to_file.get(keys[0]) or ckpt.file_of(keys[0]),
            key=keys[0],
            hint=HINT,
        )
    rest = [repeated.key for layers in list(repeats_by_sentence.values())[MAX_KINDS:] for repeated in layers]
    if rest:
        yield Problem(
            f"{count(len(rest), 'more layer repeats', 'more layers repeat')} other experts: {join_truncated(rest)}",
            file=ckpt.tensor_to_file.get(rest[0]) or ckpt.file_of(rest[0]),
            key=rest[0],
            hint=HINT,
        )


HINT = "export again with global expert numbers, unless experts were copied on purpose and not trained since"
MAX_KINDS = 3
"""Kinds of copies that get a problem of their own."""
