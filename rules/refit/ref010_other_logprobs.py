"""The engine computes other logprobs than the same engine, started cold from the same weights.

## What it checks
After every sync the logprobs by prefill and by decoding, and what greedy decoding gives, are those of a cold load, to the last
bit or within 1e-6.

## Why it matters
It is the one check that no packed copy, no derived state and no forgotten cache can pass. If every weight is equal and the
logprobs are not, the engine computes with something that is not among its weights.

## How to fix
With equal weights: look at REF006, REF007 and REF011, and at CUDA graphs that hold old pointers. Restart the engine to be sure.

## When it can be wrong
Kernels whose sums depend on the batch differ by rounding; sequences are scored in the same batches on both sides.

## Seen in
vLLM 0.32 on CPUs: after `reload_weights` of a tied model its packed head is stale, and every parameter is equal
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.refit.judging import apart
from ckptcheck.refit.trace import RefitTrace

NOISE = 1e-6
"""Nats by which two runs of one engine over the same weights may differ: none did, on CPUs."""


@rule(
    "REF010",
    "other-logprobs",
    severity="error",
    on="refit",
    when=lambda trace: any(scoring.after for scoring in trace.scorings),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    for scoring in trace.scorings:
        if not scoring.after:
            continue
        sync = trace.syncs[scoring.after - 1]
        pairs = list(zip(scoring.engine, scoring.cold, strict=True))
        prefill = max((apart(here.prompt, there.prompt) for here, there in pairs), default=0.0)
        decode = max((apart(here.decode, there.decode) for here, there in pairs), default=0.0)
        if max(prefill, decode) > NOISE or any(here.decoded != there.decoded for here, there in pairs):
            equal = bool(sync.manifest) and not any(entry.kind == "parameter" for entry, _ in sync.differing.values())
            why = (
                "though every weight that can be read is equal: it computes with something else"
                if equal
                else "as are weights"
            )
            yield Problem(
                f"after sync {scoring.after} logprobs are off from a cold load of the same weights by up to {prefill:.3g} nats in"
                f" prefill and {decode:.3g} in decoding, {why}",
                hint="see REF006 and REF007; restart the engine to be sure"
                if equal
                else "see the findings about weights",
            )
            return
