"""A response under way when the weights change is cut short unsaid, or the update is misreported.

## What it checks
In every way to pause, a response either goes on to the tokens that were asked for or, where the pause aborts, is called aborted,
and the engine's answer to the update is true.

## Why it matters
A truncated answer that is called finished gets a reward as if the policy had meant to stop there. A trainer that believes in a
failure sends again, or goes on with versions that are not there.

## How to fix
Count the tokens, and treat short responses without an end token as aborted.

## When it can be wrong
An engine that refuses an update while requests run, and says so, is honest; a job that drains them first is not hurt.
One that ends a response at a stop string, as asked, is not met here, for the probe asks for none and goes on past end
tokens. Weights that are nearly the same before and after give logprobs in which the passage cannot be seen, and then
a wrong answer of the engine stays unnoticed.

## Seen in
vLLM's and SGLang's pause modes: abort drops what is running, and in one process vLLM 0.32 does so without a word;
in_place of SGLang 0.5.23 applies the update and answers False, for the cache was not flushed
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.probes.inflight import InflightSeen
from ckptcheck.parity.probes.trace import ProbeTrace, asked


@rule("PRB017", "lost-response", severity="error", on="probe", when=asked("inflight"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    for each in trace.of("inflight", InflightSeen).passages:
        said = each.finish not in ("", "length", "stop")
        if each.tokens < each.wanted and not (said and each.pause == "abort"):
            yield Problem(
                f"{each.way}: a response under way ended after {each.tokens} of {each.wanted} tokens, and the engine calls it"
                f" {each.finish or 'nothing'}",
                hint="count tokens of responses that ran across an update; treat short ones as aborted",
            )
        elif not each.ok and each.changed is not None:
            yield Problem(
                f"{each.way}: the engine says that the update under way failed, and computes with it from token {each.changed} on",
                hint="do not take its answer for what it holds: compare checksums (ckptcheck refit), or drain requests first",
            )
        elif not each.ok:
            yield Problem(
                f"{each.way}: the engine refused the update while a request was running",
                hint="drain or abort requests before an update",
            )
