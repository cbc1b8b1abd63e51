"""After the sync the engine decodes from keys and values of the weights before.

## What it checks
A prompt that was cached before the sync is decoded the same after it, with the prefix cache as the update left it and with the
cache reset. Logprobs of the prompt bypass the cache and cannot show it, so tokens are decoded.

## Why it matters
Prompts repeat in RL, above all the system prompt. Their keys and values are of an old model, and the mismatch grows with every
sync until a restart.

## How to fix
Reset the prefix cache with every update (vLLM: `reset_prefix_cache()`, `pause(clear_cache=True)`; SGLang: `flush_cache=True`), or
give every version its own `cache_salt`.

## When it can be wrong
This trial never resets the cache by itself: a job that does is not concerned. Ignore the rule there.

## Seen in
NVIDIA-NeMo/RL#4018, PrimeIntellect-ai/prime-rl#2270, radixark/miles#2783
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.refit.apart import apart
from ckptcheck.refit.trace import RefitTrace


@rule(
    "REF011",
    "stale-prefix-cache",
    severity="warning",
    on="refit",
    when=lambda trace: (
        any(scoring.warm for scoring in trace.scorings) or (bool(trace.unkept) and len(trace.scorings) > 2)
    ),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    if trace.unkept:
        raise Skip(trace.unkept)
    for scoring in trace.scorings:
        for kept, fresh in scoring.warm:
            gap = apart([kept.decode], [fresh.decode]).most
            if gap > 1e-4 or kept.decoded != fresh.decoded:
                yield Problem(
                    f"after sync {scoring.after} {kept.cached:,} tokens came from the prefix cache, and logprobs are off by"
                    f" {gap:.3g} nats from those after a reset",
                    hint="reset the prefix cache with every update",
                )
                return
