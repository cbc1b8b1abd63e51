"""The transport does not answer a faulty update: it waits for ever.

## What it checks
- `ckptcheck refit --conformance` gives each update a limit of time. The rule names the faults after which neither success nor an
  error came back in that time, so that the receiver had to be ended.

## Why it matters
- A job that hangs costs its GPUs until somebody looks, and the cause is gone by then: NCCL has no limit of its own.

## How to fix
- Give every wait a limit, on both sides, and end the update with an error when it has passed.
- Let each side notice that the other has gone, such as by a heartbeat beside the group.

## When it can be wrong
- The transport answers later than the limit, which is one minute. A kit with a small model should not take that long.

## Seen in
NVIDIA-NeMo/RL#3944, sgl-project/sglang#17870 (an update that hangs in the group)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.conformance.report_faults import group_by_kind
from ckptcheck.live.conformance.trace import ConformanceTrace


@rule("REF060", "unanswered-fault", severity="warning", on="conformance")
def check(trace: ConformanceTrace) -> Iterator[Problem]:
    for kind, title, outcomes in group_by_kind(trace.find_outcomes("unanswered")):
        yield Problem(
            f"{title}: neither success nor an error came back, so the receiver was ended ({outcomes[0].detail})",
            key=kind,
            hint="limit every wait of both sides, and end the update with an error when it has passed",
        )
