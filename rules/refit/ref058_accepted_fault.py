"""The transport accepts a faulty update: only a comparison of the weights shows it.

## What it checks
- `ckptcheck refit --conformance` puts faults on a transport and reads what the receiver holds afterwards.
- The rule names each fault after which the transport reported success, or nothing at all, although the receiver holds other
  weights than the update brought. ckptcheck sees this by digests; a job without them does not.

## Why it matters
- Rollouts come from weights that no step of the trainer ever had. The loss still looks plausible.
- Both engines take partial updates on purpose, so nothing in them notices a lost bucket. The sender has to.

## How to fix
- Announce what will come (names or a number of bytes), count it on arrival, and refuse to end an update that is not whole.
- Install new weights together at the end, not as they arrive, so that a dead sender leaves the old ones.
- Where the framework cannot be changed, watch its syncs: `ckptcheck.watch`, or `ckptcheck refit` before a run.

## When it can be wrong
- The transport is meant for partial updates (adapters, single layers). The warning then states a fact, not a fault.

## Seen in
tokenspeed#1373 (200 OK and nothing written), miles#2605 (ten failed writes, ok=true), AReaL#1590 (200 with a status of error)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.conformance.report_faults import group_by_kind
from ckptcheck.live.conformance.trace import ConformanceTrace


@rule("REF058", "accepted-fault", severity="warning", on="conformance")
def check(trace: ConformanceTrace) -> Iterator[Problem]:
    for kind, title, outcomes in group_by_kind(trace.find_outcomes("ckptcheck")):
        yield Problem(
            f"{title}: {outcomes[0].detail}",
            key=kind,
            hint="count on arrival what was announced, and refuse an update that is not whole; until then compare digests",
        )
