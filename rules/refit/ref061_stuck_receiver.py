"""A fault leaves the receiver in a state from which a sound update does not bring it back.

## What it checks
- After every fault `ckptcheck conformance` sends the old weights by a sound update, over marks, and compares what the
  receiver then holds with what it held before the fault.
- It is an error if that update reports success and the weights are wrong. It is a warning if the receiver refuses the update, so
  that only a restart helps, or the end of the open update by hand.

## Why it matters
- One lost bucket then spoils every later update of the run, and a job that sees success does not restart the receiver.

## How to fix
- End the session of an update that failed, on both sides, before the error leaves the call: free its buffers, leave its group,
  forget its version.
- Let the beginning of an update reset what an unfinished one has left.

## When it can be wrong
- A receiver that asks for a restart after a failed update is safe if it also stops serving.

## Seen in
vllm-project/vllm 0.32.0 (the first request after a failed reload_weights on a CPU), FlashRT#205
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.conformance.trace import ConformanceTrace, group_by_kind


@rule("REF061", "stuck-receiver", severity="warning", on="conformance")
def check(trace: ConformanceTrace) -> Iterator[Problem]:
    for kind, title, outcomes in group_by_kind([outcome for outcome in trace.outcomes if outcome.is_stuck]):
        worst = next((outcome for outcome in outcomes if outcome.is_wrong_afterwards), outcomes[0])
        way, _, failure = worst.recovery.partition(": ")
        yield Problem(
            f"{title}: {failure}; only {way} brought the receiver back",
            key=kind,
            hint="end the session of a failed update before its error leaves the call; until then restart after one",
            severity="error" if worst.is_wrong_afterwards else None,
        )
