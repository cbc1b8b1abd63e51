"""A way to pause the engine for an update does not do what its name says.

## What it checks
- The probe updates the weights while a response is running, in every way that the engine can pause.
- `wait` lets the response end with the old weights, `abort` ends it, and every other mode (`keep` in vLLM; `retract` and
  `in_place` in SGLang) lets it continue to the tokens that the request asked for.
- Decoding the response again under the old and the new weights shows from which token on the new weights were used.

## Why it matters
A job chooses the mode for its meaning. Under `wait`, a response that passes to the new weights is a mixture that the job treats
as on-policy. Under `keep`, an aborted response is lost work, and it is the long answers that are lost.

## How to fix
Choose another mode, or drain or abort requests yourself before the update. Tell the engine's maintainers.

## When it can be wrong
- A response that is over before the engine receives the update shows nothing, and passes.
- Within one process vLLM has no `wait`, and does not tell a request that it was aborted. ckptcheck does both there as a server
  would, so the probe tests only vLLM's scheduler.

## Seen in
volcengine/verl#5721, weights updated before the rollout was finished; vllm-project/vllm#54443, one response of two versions
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.inflight import InflightProbeResult
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe


@rule("PRB025", "misnamed-pause", severity="warning", on="probe", when=requires_probe("inflight"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    for response in trace.result_of("inflight", InflightProbeResult).responses:
        if response.ok and response.pause_mismatch:
            yield Problem(
                f"{response.pause_label}: {response.pause_mismatch}",
                hint="pause in another way, or drain or abort requests yourself before the update",
            )
