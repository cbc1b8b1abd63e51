"""The transport accepts a fault, does not answer it, or could not be tried with it.

## What it checks
`ckptcheck conformance` puts faults on a transport and reads what the receiver holds afterwards: buckets that are dropped,
sent twice or cut short, a sender that dies, two updates at once, an update while a response is generated, and more. The rule names
each fault that is

- silent (an error): the transport reported success, and neither the digests of what the receiver holds nor versions can tell: the
  tensors in question cannot be read, or tokens carry no version of the weights that computed them.
- accepted (a warning): the transport reported success, or nothing at all, although the receiver holds other weights than the update
  brought. ckptcheck sees this by digests; a job without them does not.
- unanswered (a warning): within the limit of time neither success nor an error came back, so that the receiver had to be ended.
- untried (an info), with the reason: the class has no method for it, the transport takes all buckets in one call, the receiver
  reports no version.

## Why it matters
- A job that meets such a fault trains on: rollouts come from weights that no step of the trainer ever had, or are of mixed weights.
  The loss still looks plausible, and of a silent fault no check can tell.
- Both engines take partial updates on purpose, so nothing in them notices a lost bucket. The sender has to.
- A job that hangs costs its GPUs until somebody looks, and the cause is gone by then: NCCL has no limit of its own.
- Not tried is no pass. A table without the row would read like one.

## How to fix
- Announce what will come (names or a number of bytes), count it on arrival, and refuse to end an update that is not whole.
- Install new weights together at the end, not as they arrive, so that a dead sender leaves the old ones.
- Report the version of the weights with every token (vLLM and SGLang can), or abort running requests at an update.
- Let `tensors()` yield everything that the receiver computes with.
- Give every wait a limit, on both sides, and end the update with an error when it has passed. Let each side notice that the other
  has gone, such as by a heartbeat beside the group.
- Where the framework cannot be changed, watch its syncs: `ckptcheck.watch`, or `ckptcheck refit` before a run.
- Untried: add the optional method that the reason names to your class (docs/conformance.md lists them), or test the fault where it
  exists: on GPUs, with several ranks.

## When it can be wrong
- The job never updates while it generates: leave `generate` out of your class. The fault is then listed as not tried.
- The transport is meant for partial updates (adapters, single layers). The warning then states a fact, not a fault.
- The transport answers later than the limit, which is one minute. A kit with a small model should not take that long.
- The fault cannot happen at all: a transport of one call has nothing between its beginning and its end. Then nothing is missing.

## Seen in
vllm-project/vllm#54443 and sgl-project/sglang#35926 (versions of tokens under updates in flight); tokenspeed#1373 (200 OK and
nothing written), miles#2605 (ten failed writes, ok=true), AReaL#1590 (200 with a status of error); NVIDIA-NeMo/RL#3944,
sgl-project/sglang#17870 (an update that hangs in the group)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Severity
from ckptcheck.live.conformance.outcome import Answer
from ckptcheck.live.conformance.report_faults import group_by_kind
from ckptcheck.live.conformance.trace import ConformanceTrace

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


@rule("REF057", "mishandled-fault", severity="error", on="conformance", when=lambda trace: not trace.problems)
def check(trace: ConformanceTrace) -> Iterator[Problem]:
    for answer, severity, message, hint in ANSWERS:
        for kind, title, outcomes in group_by_kind(trace.find_outcomes(answer)):
            text = message.format(title=title, detail=outcomes[0].detail)
            yield Problem(text, key=kind, hint=hint or None, severity=severity)
