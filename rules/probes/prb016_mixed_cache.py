"""A response that goes on across an update is decoded from the old weights' keys and values.

## What it checks
The tokens after an update under way that keeps the caches are decoded again by the new weights with clean ones. Where caches were
to be cleared, that is PRB026.

## Why it matters
Neither the old nor the new policy gives such tokens these logprobs. In-flight updates accept that for speed; how much it is
differs between models, and it is a part of the gap that no sync can close.

## How to fix
Clear the caches with the update (vLLM `pause(clear_cache=True)`, which computes running requests anew; SGLang's mode retract), or
let requests drain (wait).

## When it can be wrong
It is a choice that PipelineRL and others make on purpose, hence only an information.

## Seen in
ServiceNow/PipelineRL: pause "keep" without clearing the cache matched its reference; vLLM's `pause_generation(mode="keep")`
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.inflight import InflightSeen
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB016", "mixed-cache", severity="info", on="probe", when=asked("inflight"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    seen = trace.of("inflight", InflightSeen)
    for each in seen.passages:
        if not each.clear and each.off is not None and each.off > seen.unlike:
            yield Problem(
                f"{each.way}: after the update {each.tokens - (each.changed or 0)} tokens were decoded partly from"
                f" keys and values of the old"
                f" weights, {each.off:.3g} nats a token from what the new weights compute",
                hint="clear the caches with the update if that is more than the job's own off-policyness",
            )
