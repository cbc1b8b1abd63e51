"""An update in flight that has to clear the caches leaves old keys and values in use.

## What it checks
After an update in flight that has to clear the caches, the new weights decode the remaining tokens again with clean caches. Both
have to give the same logprobs.

## Why it matters
A job that clears the caches pays for computing every running request again, to get responses of one policy after the update. If
the caches are not cleared, the job trains on tokens to which neither policy gives these logprobs.

## How to fix
Reset the caches in a separate call before requests continue, let requests drain (wait), or abort them. Tell the engine's
maintainers.

## When it can be wrong
- The rule allows narrow dtypes 0.05 nats. An engine whose results for batches of other shapes differ by more would look like one
  that clears nothing.
- If the engine says that the update failed, PRB017 reports it.

## Seen in
SGLang's in_place, which cannot flush a cache in use, and says so (PRB017)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.inflight import InflightProbeResult
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe


@rule("PRB026", "uncleared-cache", severity="warning", on="probe", when=requires_probe("inflight"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    result = trace.result_of("inflight", InflightProbeResult)
    for response in result.responses:
        if (
            response.clear
            and response.ok
            and response.gap_after_update is not None
            and response.gap_after_update > result.tolerance
        ):
            yield Problem(
                f"{response.pause_label}: after the update {response.tokens - (response.changed or 0)} tokens are"
                f" {response.gap_after_update:.3g} nats a token from what the new weights compute with clean caches",
                hint="reset the caches in a call of their own before requests go on, or let them drain (wait)",
            )
