"""An update in flight cuts a response short without saying so, or its result is reported wrongly.

## What it checks
In every way to pause, a response either continues to the tokens that the request asked for or, where the pause aborts, is
reported as aborted; and the engine's answer to the update is true.

## Why it matters
A truncated answer that is reported as finished gets a reward as if the policy had chosen to stop there. A trainer that believes a
false failure sends the weights again, or continues with versions that do not exist.

## How to fix
Count the tokens, and treat short responses without a stop token as aborted.

## When it can be wrong
- An engine that refuses an update while requests run, and says so, is honest; a job that drains requests first is not affected.
- The probe asks for no stop string and goes on past stop tokens, so it does not test responses that end there.
- If the weights before and after are nearly the same, the logprobs do not show where the new weights begin, and a wrong answer
  of the engine goes unnoticed.

## Seen in
vLLM's and SGLang's pause modes: abort drops what is running, and in one process vLLM 0.32 does so without a word;
in_place of SGLang 0.5.23 applies the update and answers False, for the cache was not flushed
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.experiments.probes.inflight import InflightProbeResult
from ckptcheck.live.experiments.probes.trace import ProbeTrace, requires_probe


@rule("PRB017", "lost-response", severity="error", on="probe", when=requires_probe("inflight"))
def check(trace: ProbeTrace) -> Iterator[Problem]:
    for response in trace.result_of("inflight", InflightProbeResult).responses:
        says_abort = response.finish not in ("", "length", "stop")
        if response.tokens < response.requested_tokens and not (says_abort and response.pause == "abort"):
            yield Problem(
                f"{response.pause_label}: a running response ended after {response.tokens} of {response.requested_tokens}"
                f" tokens, and the engine calls it {response.finish or 'nothing'}",
                hint="count tokens of responses that ran across an update; treat short ones as aborted",
            )
        elif not response.ok and response.changed is not None:
            yield Problem(
                f"{response.pause_label}: the engine says that the update in flight failed, and computes with it"
                f" from token {response.changed} on",
                hint="do not rely on its answer: compare checksums (ckptcheck refit), or drain requests first",
            )
        elif not response.ok:
            yield Problem(
                f"{response.pause_label}: the engine refused the update while a request was running",
                hint="drain or abort requests before an update",
            )
