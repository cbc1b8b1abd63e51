"""After the sync, the engine decodes from the KV cache of the old weights.

## What it checks
- A prompt is in the prefix cache before the sync. After the sync the engine decodes it twice: with the cache as the
  update left it, and after a reset. Both give the same tokens and logprobs.
- The rule uses decoded tokens, because logprobs of a prompt bypass the cache.

## Why it matters
- Prompts repeat in RL, above all the system prompt. Their cached keys and values come from an old model, and the
  mismatch grows with every sync until the engine restarts.

## How to fix
- Reset the prefix cache with every update (vLLM: `reset_prefix_cache()`, `pause(clear_cache=True)`; SGLang:
  `flush_cache=True`).
- Or give every version its own `cache_salt`.

## When it can be wrong
- This trial never resets the cache by itself. If your job does, ignore the rule.

## Seen in
NVIDIA-NeMo/RL#4018, PrimeIntellect-ai/prime-rl#2270, radixark/miles#2783
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.refit.logprob_diff import compare_logprobs
from ckptcheck.refit.trace import RefitTrace


@rule(
    "REF011",
    "stale-prefix-cache",
    severity="warning",
    on="refit",
    when=lambda trace: (
        any(scoring.cache_probes for scoring in trace.scorings)
        or (bool(trace.cache_unused_reason) and len(trace.scorings) > 2)
    ),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    if trace.cache_unused_reason:
        raise Skip(trace.cache_unused_reason)
    for scoring in trace.scorings:
        for cached, uncached in scoring.cache_probes:
            difference = compare_logprobs([cached.decode_logprobs], [uncached.decode_logprobs]).most
            if difference > 1e-4 or cached.decoded_tokens != uncached.decoded_tokens:
                yield Problem(
                    f"after sync {scoring.after_sync}, {cached.cached_tokens:,} tokens came from the prefix cache, and"
                    f" logprobs differ by {difference:.3g} nats from those after a reset",
                    hint="reset the prefix cache with every update",
                )
                return
