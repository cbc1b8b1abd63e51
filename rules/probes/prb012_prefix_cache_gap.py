"""Under one set of weights, a cached prefix gives other logprobs than a computed one.

## What it checks
Prompts longer than a block of the prefix cache are answered twice, the second time from the cache, and the same tokens are
decoded by an engine that has no prefix cache.

## Why it matters
For a fixed model the cache is an optimisation that changes nothing. Where it does, identical prompts of one group get
different logprobs, by the order in which they came.

## How to fix
Turn it off (vLLM `--no-enable-prefix-caching`, SGLang `--disable-radix-cache`) until it is repaired.

## When it can be wrong
Recurrent layers can keep states of prefixes in a narrower type than they compute in.

## Seen in
ServiceNow/PipelineRL's migration to vLLM V1 turned it off to have one degree of freedom less
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.parity.probes.limits import differing
from ckptcheck.parity.probes.setups import AlternativesSeen
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB012", "prefix-cache-gap", severity="error", on="probe", when=asked("prefix-cache"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    seen = trace.of("prefix-cache", AlternativesSeen)
    if not seen.cached:
        raise Skip("no token came from the prefix cache")
    for each in differing(seen):
        yield Problem(
            f"after {seen.cached} tokens from the prefix cache, decoding is up to {each.largest:.3g} nats from"
            f" decoding without it",
            hint="turn the prefix cache off for rollouts, and tell the engine's maintainers",
        )
