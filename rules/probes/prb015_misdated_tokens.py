"""The engine reports the weight version of tokens wrongly, or not at all.

## What it checks
The probe updates the weights while a response is running, in every way that the engine can pause. It then decodes the response
again under the old and under the new weights alone, which shows from which token on the new weights were used. The version that
the engine reports for each token has to change there.

## Why it matters
Staleness filters, and importance weights of partly old rollouts, use these versions. An engine that stamps the version at the end
of a response calls all of it fresh.

## How to fix
Send the version with the update, and read versions per token. Where they are wrong, keep the time of the update instead.

## When it can be wrong
If old and new weights are so close that a token's logprob does not change, that token looks old.

## Seen in
rllm#622 stamps the version when a response is complete; vllm-project/vllm#54443; radixark/miles#2244
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.inflight import InflightProbeResult
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe


@rule("PRB015", "misdated-tokens", severity="warning", on="probe", when=requires_probe("inflight"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    for response in trace.result_of("inflight", InflightProbeResult).responses:
        if not response.ok or not response.tokens:
            continue
        if response.changed is not None and response.reported_from is None:
            detail = (
                "the engine reports that for none of them" if response.versions else "the engine reports no versions"
            )
            yield Problem(
                f"{response.pause_label}: tokens from number {response.changed} on are of the new weights, and {detail}",
                hint="send the version with the update (finish_weight_update(weight_version=…)), and read it per token",
            )
        elif response.reported_from is not None and not response.is_dated_correctly:
            since = f"number {response.changed} on" if response.changed is not None else "none of them"
            yield Problem(
                f"{response.pause_label}: the engine says that tokens from number {response.reported_from} on are of the"
                f" new weights, and it is {since}",
                hint="do not filter by the engine's versions; keep the time of the update instead",
            )
