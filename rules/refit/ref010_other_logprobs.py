"""The engine computes other logprobs than the same engine, started cold from the same weights.

## What it checks
After every sync the logprobs by prefill and by decoding, and what greedy decoding gives, are those of a cold load: within 1e-6, or
within ten times what the cold engine differs from itself when it is asked again. Where a tie parts the greedy tokens, what follows
is not compared. On a GPU another process may choose other kernels: after a step, what rounding explains is then skipped.

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

from ckptcheck import Problem, Skip, rule
from ckptcheck.refit.judging import gaps
from ckptcheck.refit.trace import RefitTrace


@rule(
    "REF010",
    "other-logprobs",
    severity="error",
    on="refit",
    when=lambda trace: any(scoring.after for scoring in trace.scorings),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    doubtful = ""
    for scoring in trace.scorings:
        seen = gaps(scoring)
        if not scoring.after or seen.most <= trace.floor.loads:
            continue
        sync = trace.syncs[scoring.after - 1]
        # before the first step the cold load was this very process
        if sync.step and _on_gpu(trace) and not sync.wrong and seen.most <= trace.floor.sides.most:
            doubtful = (
                f"after sync {scoring.after} logprobs are off by up to {seen.most:.3g} nats: rounding explains more, and on a GPU"
                " another process may choose other kernels"
            )
            continue
        equal = bool(sync.manifest) and not sync.wrong
        why = (
            "though every weight that can be read is equal: it computes with something else"
            if equal
            else "as are weights"
        )
        yield Problem(
            f"after sync {scoring.after} logprobs are off from a cold load of the same weights by up to"
            f" {seen.prefill.most:.3g} nats in prefill and {seen.decode.most:.3g} in decoding, {why}",
            hint="see REF006 and REF007; restart the engine to be sure" if equal else "see the findings about weights",
        )
        return
    if doubtful:
        raise Skip(doubtful)


def _on_gpu(trace: RefitTrace) -> bool:
    return trace.engine is not None and trace.engine.facts.get("device") == "cuda"
