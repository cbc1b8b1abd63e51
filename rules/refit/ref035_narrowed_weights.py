"""The engine keeps weights in a narrower dtype than the trainer sends.

## What it checks
- No parameter of the engine has fewer bits than the weights it is built from. Other rules check quantized engines.

## Why it matters
- The engine rounds at every sync and says nothing. The policy that samples is not the one whose logprobs the trainer
  computes, so the ratio is noisy from the first step on.
- A cold load rounds in the same way, so comparing with one does not show it.

## How to fix
- Give engine and trainer the same dtype, or correct the ratio for the mismatch (importance sampling between the two).

## When it can be wrong
- Some jobs train in float32 and sample in bf16 on purpose, and correct for it.

## Seen in
vLLM's `dtype=auto` (float32 checkpoints are served in bf16 or fp16); mbridge 0.15.1 (float32 weights are rounded silently)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.weight_names import describe_origin, trainer_weights
from ckptcheck.text.formatting import count, join_truncated

BITS = {"F64": 64, "F32": 32, "BF16": 16, "F16": 16}


@rule(
    "REF035",
    "narrowed-weights",
    severity="warning",
    on="refit",
    when=lambda trace: bool(trace.cold_manifest and trace.weights),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    weights = {weight.name: weight for weight in trace.weights}
    narrowed: dict[tuple[str, str], set[str]] = {}
    for (_, name), entry in trace.cold_manifest.items():
        if entry.kind != "parameter" or entry.opaque or entry.dtype not in BITS:
            continue
        for weight in trainer_weights(name, weights):
            if BITS.get(weight.dtype, 0) > BITS[entry.dtype]:
                narrowed.setdefault((weight.dtype, entry.dtype), set()).add(name)
    for (sent_dtype, engine_dtype), tensors in narrowed.items():
        names = sorted(tensors)
        yield Problem(
            f"the engine keeps {count(len(names), 'tensor')} in {engine_dtype} that the trainer sends in {sent_dtype}:"
            f" {join_truncated(names)}" + describe_origin(trace, names),
            key=names[0],
            hint="give both sides the same dtype, or correct the ratio for it",
            names=tuple(names),
        )
