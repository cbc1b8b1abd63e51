"""The engine's word for which tokens are of the new weights is missing or wrong.

## What it checks
The weights are updated while a response is under way, in every way that the engine can pause. Decoded again under the old and the
new weights alone, the response tells itself from which token on the new weights were used. The engine's version of each token
has to change there.

## Why it matters
Filters of staleness, and importance weights of partly old rollouts, go by these versions. One that is stamped at the end of a
response calls all of it fresh.

## How to fix
Send the version with the update, and read versions per token. Where they are wrong, keep the time of the update instead.

## When it can be wrong
Weights so close that a token's logprob does not move look old one token longer.

## Seen in
rllm#622 stamps the version when a response is complete; vllm-project/vllm#54443; radixark/miles#2244
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.inflight import InflightSeen
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB015", "misdated-tokens", severity="warning", on="probe", when=asked("inflight"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    for each in trace.of("inflight", InflightSeen).passages:
        if not each.ok or not each.tokens:
            continue
        if each.changed is not None and each.told is None:
            said = "is said of none" if each.versions else "the engine says no versions"
            yield Problem(
                f"{each.way}: tokens from number {each.changed} on are of the new weights, and {said}",
                hint="send the version with the update (finish_weight_update(weight_version=…)), and read it per token",
            )
        elif each.told is not None and not each.dated:
            since = f"number {each.changed} on" if each.changed is not None else "none of them"
            yield Problem(
                f"{each.way}: the engine says that tokens from number {each.told} on are of the new weights, and it is {since}",
                hint="do not filter by the engine's versions; keep the time of the update instead",
            )
