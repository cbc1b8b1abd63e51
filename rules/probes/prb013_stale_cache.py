"""After a weight update the engine decodes from keys and values of the old weights.

## What it checks
- The probe fills the prefix cache with a long prompt, updates the weights by the engine's own path without a reset, and asks
  again: once as before, and once under another cache salt, which shares nothing with the cache.
- Both answers have to be the same. Logprobs of a prompt bypass the cache and cannot show this.

## Why it matters
Prompts repeat in RL, above all the system prompt. Their keys come from an old model, and the mismatch grows with every sync until
a restart: a curve that climbs for hundreds of steps.

## How to fix
- Reset the cache with every update: vLLM `reset_prefix_cache()`, `pause(clear_cache=True)`; SGLang `flush_cache=True`.
- Or send a `cache_salt` that contains the version.

## When it can be wrong
A job that resets the cache itself is not affected.

## Seen in
NVIDIA-NeMo/RL#4018; PrimeIntellect-ai/prime-rl#2270 and #1651; radixark/miles#2783
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.experiments.probes.stale_cache import StaleCacheResult
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe


@rule("PRB013", "stale-cache", severity="warning", on="probe", when=requires_probe("stale"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("stale", StaleCacheResult)
    if not result.ok:
        raise Skip(f"the engine refused the update: {result.answer}")
    if not result.warm:
        raise Skip("no token came from the prefix cache before the update either")
    if result.is_stale:
        difference = (
            "the first token is another"
            if result.first_token_differs
            else f"logprobs are up to {result.gap.largest:.3g} nats off"
        )
        yield Problem(
            f"after a weight update that resets nothing {result.cached} tokens still come from the prefix"
            f" cache: {difference} than under another cache salt",
            hint="reset the prefix cache with every update, or give every version its own cache_salt",
        )
