"""A response that continues across an update uses the old weights' keys and values.

## What it checks
After an update in flight that keeps the caches, the new weights decode the remaining tokens again with clean caches. Where the
update had to clear the caches, PRB026 applies.

## Why it matters
Neither the old nor the new policy gives such tokens these logprobs. In-flight updates accept that for speed. How much it costs
differs between models, and it is a part of the gap that no sync can close.

## How to fix
Clear the caches with the update (vLLM `pause(clear_cache=True)`, which computes running requests again; SGLang's mode retract),
or let requests drain (wait).

## When it can be wrong
PipelineRL and others choose this on purpose, so the severity is only info.

## Seen in
ServiceNow/PipelineRL: pause "keep" without clearing the cache matched its reference; vLLM's `pause_generation(mode="keep")`
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.inflight import InflightProbeResult
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe


@rule("PRB016", "mixed-cache", severity="info", on="probe", when=requires_probe("inflight"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("inflight", InflightProbeResult)
    for response in result.responses:
        if (
            not response.clear
            and response.gap_after_update is not None
            and response.gap_after_update > result.tolerance
        ):
            yield Problem(
                f"{response.pause_label}: after the update {response.tokens - (response.changed or 0)} tokens were decoded"
                f" partly from keys and values of the old weights, {response.gap_after_update:.3g} nats a token from"
                f" what the new weights compute",
                hint="clear the caches with the update if that is more than the job's own off-policyness",
            )
