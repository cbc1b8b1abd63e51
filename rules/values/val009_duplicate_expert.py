"""Two experts of a layer are the same, byte for byte.

## What it checks
No two experts of one layer have the same bytes in all their matrices. Where one tensor holds all experts of a layer, no two
of its slices are the same, unless they are zero. Nobody looks for that on the Hub.

## Why it matters
Expert-parallel exports that write every rank's experts under the first rank's numbers, or overwrite one tensor again and
again, leave copies where other experts belong.

## How to fix
Export again with global expert numbers.

## When it can be wrong
Models made sparse by copying a dense feed-forward block start with equal experts ("upcycling"), until they are trained. So do
experts that were replicated on purpose to balance the load of ranks; engines do that after loading, not in the file.
`--ignore VAL009`, or a reason under `[ignore]`, silences it.

## Seen in
NVIDIA-NeMo/Megatron-Bridge#1871
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.experts import fused_experts, numbered_experts
from ckptcheck.phrase import ranges
from ckptcheck.values.compare import equal_slices, same_bytes
from ckptcheck.values.roles import is_matrix


@rule(
    "VAL009",
    "duplicate-expert",
    severity="warning",
    on="values",
    when=lambda ckpt: any(True for experts in (numbered_experts, fused_experts) for _ in experts(ckpt.anatomy)),
)
def check(ckpt: Checkpoint) -> Iterator[Problem]:
    stack, values = ckpt.anatomy.stack, ckpt.values.tensors
    assert stack is not None
    for layer, group, members, parts in numbered_experts(ckpt.anatomy):
        known: dict[tuple[tuple[str, float], ...], int] = {}
        copies: dict[int, list[int]] = {}
        for expert in sorted(members):
            names = {part: stack.name(layer, f"{group}.{expert}.{part}") for part in sorted(parts)}
            found = {part: values.get(name) for part, name in names.items()}
            matrices = tuple(
                (part, stats.absmax)
                for part, stats in found.items()
                if stats and is_matrix(stats) and not stats.constant
            )
            twin = known.setdefault(matrices, expert) if matrices else expert
            if twin != expert and all(
                same_bytes(ckpt, names[part], stack.name(layer, f"{group}.{twin}.{part}")) for part, _ in matrices
            ):
                copies.setdefault(twin, []).append(expert)
        for twin, experts in copies.items():
            yield Problem(
                f"in layer {layer} {_again(experts, twin)}",
                file=ckpt.holder(stack.name(layer, group)),
                key=stack.name(layer, f"{group}.{experts[0]}"),
                hint="export again with global expert numbers",
            )
    yield from _in_one_tensor(ckpt)
    ckpt.require_values()
    if ckpt.source.local is None and any(True for _ in fused_experts(ckpt.anatomy)):
        raise Skip("experts in one tensor are not looked at on the Hub")


def _in_one_tensor(ckpt: Checkpoint) -> Iterator[Problem]:
    for name, number in fused_experts(ckpt.anatomy):
        stats = ckpt.values.tensors.get(name)
        if ckpt.source.local is None or stats is None or number < 2 or stats.constant or not is_matrix(stats):
            continue
        for twin, experts in equal_slices(ckpt, name).items():
            yield Problem(
                f"in this tensor {_again(experts, twin)}",
                file=ckpt.holders[name],
                key=name,
                hint="export again with global expert numbers",
            )


def _again(experts: list[int], twin: int) -> str:
    """Say that these experts are copies of another."""
    many = len(experts) > 1
    return f"expert{'s' if many else ''} {ranges(experts)} {'are' if many else 'is'} expert {twin} again, byte for byte"
