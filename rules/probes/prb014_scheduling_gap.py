"""How requests are scheduled changes what is computed.

## What it checks
The same tokens are scored and decoded with asynchronous scheduling on and off, and with prompts computed whole and in chunks of
16 tokens.

## Why it matters
Scheduling is meant to change when something is computed, not what. Defaults of both change between versions of an engine, so a
gap that came with an upgrade is looked for in the weights.

## How to fix
Set both explicitly: vLLM `--no-async-scheduling`, `--no-enable-chunked-prefill`; SGLang `--disable-overlap-schedule`,
`--chunked-prefill-size -1`.

## When it can be wrong
Chunks change the shapes of matrix products, and with them the rounding; narrow types are judged by the mean.

## Seen in
ServiceNow/PipelineRL's migration to vLLM V1: async scheduling and prefix caching were pinned before the objective was touched
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.parity.probes.limits import differing
from ckptcheck.parity.probes.setups import AlternativesSeen
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB014", "scheduling-gap", severity="warning", on="probe", when=asked("scheduling", "chunks"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    names = [name for name in ("scheduling", "chunks") if name in trace.asked]
    if all(name in trace.left for name in names):
        raise Skip("; ".join(dict.fromkeys(trace.left[name] for name in names)))
    for name in names:
        if name in trace.left:
            continue
        seen = trace.of(name, AlternativesSeen)
        for each in differing(seen):
            yield Problem(
                f"with {each.setup} logprobs are up to {each.largest:.3g} nats from those with {seen.base} (mult_prob_error"
                f" {each.error:.4g})",
                hint="set it explicitly for rollouts, as PipelineRL did for parity, and tell the engine's maintainers",
            )
