"""The transport accepts a fault, does not answer it, or could not be tried with it.

## What it checks
`ckptcheck conformance` puts faults on a transport and reads what the receiver holds afterwards: buckets that are dropped,
sent twice or cut short, a sender that dies, two updates at once, an update while a response is generated, and more. The rule names
each fault that is

- silent (an error): the transport reported success, and neither digests nor versions can show the fault, because the tensors are
  unreadable, or tokens carry no version of the weights that computed them.
- accepted (a warning): the transport reported success, or nothing at all, although the receiver's weights differ from the update.
  ckptcheck sees this by digests; a job without them does not.
- unanswered (a warning): the transport reported neither success nor an error within the limit of time, so that the kit ended the
  receiver.
- untried (an info), with the reason: the class has no method for it, the transport takes all buckets in one call, the receiver
  reports no version.

Before any fault it sends two sets of weights in turn, four sound updates, each over marks that it writes into the receiver. After
each, no mark may be left, equal weights must give equal digests, and different weights different ones; where the receiver holds
tensors as they are sent, or an engine can load the same weights cold, the digests must be those. A version that the receiver
reports must change. Else that is the finding, an error, and no fault is tried.

After every fault it sends the old weights by a sound update, over marks. It is an error if that update reports success and the
weights are wrong, and a warning if the receiver refuses it, so that only a restart helps, or the end of the open update by hand.

## Why it matters
- A job that meets such a fault continues: rollouts come from weights that no step of the trainer had, or from mixed versions. The
  loss still looks plausible, and no check can see a silent fault.
- Both engines accept partial updates on purpose, so they do not notice a lost bucket. The sender has to.
- A job that hangs wastes its GPUs until you look, and the cause is gone by then: NCCL has no limit of its own.
- An untried fault is no pass, and a table without it would look like one.
- A transport that loses weights without any fault cannot be judged under faults: every answer would be an accident.
- One lost bucket that a sound update does not mend spoils every later update of the run.

## How to fix
- Announce what will come (names or a number of bytes), count it on arrival, and refuse to end an update that is not whole.
- Install new weights together at the end, not as they arrive, so that a dead sender leaves the old ones.
- Report the version of the weights with every token (vLLM and SGLang can), or abort running requests at an update.
- Let `tensors()` yield everything that the receiver computes with, and let `end()` return only when it does.
- End the session of an update that failed, on both sides, before the error leaves the call, or let the beginning of an update reset
  what an unfinished one has left. `ckptcheck refit` with the same transport names the tensors that a sound update loses.
- Give every wait a limit, on both sides, and end the update with an error after it. Let each side notice the death of the other,
  such as by a heartbeat beside the group.
- If you cannot change the framework, watch its syncs: `ckptcheck.watch`, or `ckptcheck refit` before a run.
- Untried: add the optional method that the reason names to your class (docs/adding-a-transport.md lists them), or test the fault
  where it exists: on GPUs, with several ranks.

## When it can be wrong
- The job never updates while it generates: leave `generate` out of your class. The fault is then listed as not tried.
- The transport is meant for partial updates (adapters, single layers). The warning then states a fact, not a fault.
- The transport answers later than the limit, which is one minute. A kit with a small model should not take that long.
- The fault cannot happen at all: a transport of one call has nothing between its beginning and its end. Then nothing is missing.
- `tensors()` yields scratch memory, such as a cache. Yield weights only.
- A receiver that asks for a restart after a failed update is safe if it also stops serving.

## Seen in
vllm-project/vllm#54443 and sgl-project/sglang#35926 (versions of tokens under updates in flight); tokenspeed#1373 (200 OK and
nothing written), miles#2605 (ten failed writes, ok=true), AReaL#1590 (200 with a status of error); NVIDIA-NeMo/RL#3944,
sgl-project/sglang#17870 (an update that hangs in the group); miles#2552 (an update that reports success and writes nothing);
vllm-project/vllm 0.32.0 (the first request after a failed reload_weights on a CPU), FlashRT#205
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Severity
from ckptcheck.live.conformance.trace import Answer, ConformanceTrace, group_by_kind

ANSWERS: tuple[tuple[Answer, Severity, str, str], ...] = (
    (
        "silent",
        "error",
        "{title}: {detail}",
        "make the receiver refuse what is not whole, and report a version with every token",
    ),
    (
        "ckptcheck",
        "warning",
        "{title}: {detail}",
        "count on arrival what was announced, and refuse an update that is not whole; until then compare digests",
    ),
    (
        "unanswered",
        "warning",
        "{title}: neither success nor an error came back, so the receiver was ended ({detail})",
        "limit every wait of both sides, and end the update with an error when it has passed",
    ),
    ("untried", "info", "not tried: {title}: {detail}", ""),
)
"""Answer of the transport to a fault, severity, message, hint."""


@rule("REF057", "mishandled-fault", severity="error", on="conformance")
def check(trace: ConformanceTrace) -> Iterator[Problem]:
    if trace.problems:
        for problem in trace.problems:
            yield Problem(problem, hint="fix the update without faults first; no fault was tried")
        return
    for answer, severity, message, hint in ANSWERS:
        for kind, title, outcomes in group_by_kind(trace.find_outcomes(answer)):
            text = message.format(title=title, detail=outcomes[0].detail)
            yield Problem(text, key=kind, hint=hint or None, severity=severity)
    for kind, title, outcomes in group_by_kind([outcome for outcome in trace.outcomes if outcome.is_stuck]):
        worst = next((outcome for outcome in outcomes if outcome.is_wrong_afterwards), outcomes[0])
        way, _, failure = worst.recovery.partition(": ")
        yield Problem(
            f"{title}: {failure}; only {way} brought the receiver back",
            key=kind,
            hint="end the session of a failed update before its error leaves the call; until then restart after one",
            severity="error" if worst.is_wrong_afterwards else "warning",
        )
