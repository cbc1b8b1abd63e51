"""After a weight update the engine decodes from keys and values of the weights before.

## What it checks
A long prompt is cached, the weights are updated by the engine's own path with no reset, and the prompt is asked again: once as
before, once under another cache salt, which shares nothing. What is decoded has to be the same. Logprobs of a prompt bypass the
cache and cannot show this.

## Why it matters
Prompts repeat in RL, above all the system prompt. Their keys are of an old model, and the mismatch grows with every sync until a
restart: a curve that climbs for hundreds of steps.

## How to fix
Reset the cache with every update (vLLM `reset_prefix_cache()`, `pause(clear_cache=True)`; SGLang `flush_cache=True`), or send
`cache_salt` with the version in it.

## When it can be wrong
A job that resets the cache itself is not concerned.

## Seen in
NVIDIA-NeMo/RL#4018; PrimeIntellect-ai/prime-rl#2270 and #1651; radixark/miles#2783
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.parity.probes.stale import StaleSeen
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB013", "stale-cache", severity="warning", on="probe", when=asked("stale"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    seen = trace.of("stale", StaleSeen)
    if not seen.ok:
        raise Skip(f"the engine refused the update: {seen.answer}")
    if not seen.warm:
        raise Skip("no token came from the prefix cache before the update either")
    if seen.stale:
        off = "the first token is another" if seen.other else f"logprobs are up to {seen.gap.largest:.3g} nats other"
        yield Problem(
            f"after a weight update that resets nothing {seen.cached} tokens still come from the prefix cache: {off} than under"
            " another cache salt",
            hint="reset the prefix cache with every update, or give every version its own cache_salt",
        )
