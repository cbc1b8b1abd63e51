"""A way to pause the engine for an update does not do what its name says.

## What it checks
The weights are updated while a response is under way, in every way that the engine can pause. `wait` lets the response end with the
old weights, `abort` ends it, and every other (`keep`, vLLM; `retract`, `in_place`, SGLang) lets it go on to the tokens that were
asked for. From which token on the new weights were used is seen by decoding the response again under the old and the new ones.

## Why it matters
A job chooses the way for what it means. Under `wait` a response that passes to the new weights is a mixture that the job takes
for on-policy; under `keep` one that is aborted is work lost, and the long answers are those that are lost.

## How to fix
Choose another way, or drain or abort requests yourself before the update; tell the engine's maintainers.

## When it can be wrong
A response that is over before the engine hears of the update shows nothing, and passes. In one process vLLM has no `wait`, and does
not tell a request that it was aborted; ckptcheck does both there as a server would, so only vLLM's scheduler is tried.

## Seen in
volcengine/verl#5721, weights updated before the rollout was finished; vllm-project/vllm#54443, one response of two versions
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.inflight import InflightSeen
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB025", "misnamed-pause", severity="warning", on="probe", when=asked("inflight"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    for each in trace.of("inflight", InflightSeen).passages:
        if each.ok and each.unlike_its_name:
            yield Problem(
                f"{each.way}: {each.unlike_its_name}",
                hint="pause in another way, or drain or abort requests yourself before the update",
            )
