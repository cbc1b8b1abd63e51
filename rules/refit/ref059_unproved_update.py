"""A sound update through the transport does not bring the weights that were sent.

## What it checks
- Before any fault, `ckptcheck conformance` sends two sets of weights in turn, four updates without a fault, each over
  marks that it writes into the receiver.
- After each, no mark may be left, equal weights must give equal digests, and different weights different ones. Where the
  receiver holds tensors as they are sent, or an engine can load the same weights cold, the digests must be those.
- The version that the receiver reports must change, if it reports one.

## Why it matters
- A transport that loses weights without any fault cannot be judged under faults: every answer would be an accident.

## How to fix
- `ckptcheck refit` with the same transport names the tensors, their parts and the likely cause.
- In a class of your own see that `end()` returns only when the receiver computes with the new weights, and that `tensors()`
  yields what it computes with.

## When it can be wrong
- `tensors()` yields scratch memory, such as a cache. Yield weights only.

## Seen in
miles#2552, tokenspeed#1373 (updates that report success and write nothing)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.conformance.trace import ConformanceTrace


@rule("REF059", "unproved-update", severity="error", on="conformance")
def check(trace: ConformanceTrace) -> Iterator[Problem]:
    for problem in trace.problems:
        yield Problem(problem, hint="mend the sound update first; no fault was tried")
