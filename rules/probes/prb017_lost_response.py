"""A response that was under way when the weights changed is cut short, and nothing says so.

## What it checks
In every way to pause, a response either goes on to the tokens that were asked for or is called aborted, and the update is taken.

## Why it matters
A truncated answer that is called finished gets a reward as if the policy had meant to stop there.

## How to fix
Count the tokens, and treat short responses without an end token as aborted.

## Seen in
vLLM's and SGLang's pause modes: abort drops what is running, and in one process vLLM 0.32 does so without a word
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.inflight import InflightSeen
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB017", "lost-response", severity="error", on="probe", when=asked("inflight"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    for each in trace.of("inflight", InflightSeen).passages:
        if each.finish in ("", "length", "stop") and each.tokens < each.wanted:
            yield Problem(
                f"{each.way}: a response under way ended after {each.tokens} of {each.wanted} tokens, and the engine calls it"
                f" {each.finish or 'nothing'}",
                hint="count tokens of responses that ran across an update; treat short ones as aborted",
            )
        elif not each.ok:
            yield Problem(
                f"{each.way}: the engine refused the update while a request was running",
                hint="drain or abort requests before an update",
            )
