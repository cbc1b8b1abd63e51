"""The engine keeps weights in a narrower dtype than they were sent in.

## What it checks
No parameter of the engine has fewer bits than the weights that it is made of. Quantized engines are asked elsewhere.

## Why it matters
The engine rounds at every sync, and says nothing. The policy that samples is then not the one whose logprobs the trainer has: the
ratio is noisy from the first step on. A cold load rounds alike, so comparing with one shows nothing.

## How to fix
Give engine and trainer the same dtype, or correct the ratio for the mismatch (importance sampling between the two).

## When it can be wrong
Jobs train in float32 and sample in bf16 on purpose, and correct for it.

## Seen in
vLLM's `dtype=auto` (float32 checkpoints are served in bf16 or fp16); mbridge 0.15.1 (float32 weights are rounded silently)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.phrase import count, few
from ckptcheck.refit.names import origin, sources
from ckptcheck.refit.trace import RefitTrace

BITS = {"F64": 64, "F32": 32, "BF16": 16, "F16": 16}


@rule(
    "REF035", "narrowed-weights", severity="warning", on="refit", when=lambda trace: bool(trace.cold and trace.weights)
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    weights = {weight.name: weight for weight in trace.weights}
    found: dict[tuple[str, str], set[str]] = {}
    for (_, name), entry in trace.cold.items():
        if entry.kind != "parameter" or entry.opaque or entry.dtype not in BITS:
            continue
        for weight in sources(name, weights):
            if BITS.get(weight.dtype, 0) > BITS[entry.dtype]:
                found.setdefault((weight.dtype, entry.dtype), set()).add(name)
    for (sent, held), names in found.items():
        listed = sorted(names)
        yield Problem(
            f"{count(len(listed), 'tensor is', 'tensors are')} kept in {held} and sent in {sent}: {few(listed)}"
            + origin(trace, listed),
            key=listed[0],
            hint="give both sides the same dtype, or correct the ratio for it",
        )
