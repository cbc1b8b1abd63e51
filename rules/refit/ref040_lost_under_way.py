"""A request that ran when the weights changed was cut short, unasked or unsaid.

## What it checks
With `--pause MODE` a request runs in every sync. It goes on to the tokens that were asked for; with `abort` it may end before, and
is then called aborted.

## Why it matters
A truncated answer that is called finished gets a reward as if the policy had meant to stop there. One that is aborted where the job
counts on all to go on is missing from its batch.

## How to fix
Count the tokens, and send what was cut again.

## When it can be wrong
A response that ends at an end token is not met here: the request goes on past those. A request that is over before the update
begins is whole.

## Seen in
vLLM's and SGLang's pause modes: abort drops what is running, and in one process vLLM 0.32 does so without a word
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.refit.trace import RefitTrace


@rule(
    "REF040",
    "lost-under-way",
    severity="error",
    on="refit",
    when=lambda trace: any(sync.passage for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    for sync in trace.syncs:
        if (seen := sync.passage) is not None and seen.cut:
            yield Problem(
                f"in sync {sync.number} the request that ran (pause {seen.pause}) ended after {seen.tokens} of {seen.wanted}"
                f" tokens, and the engine calls it {seen.finish or 'nothing'}",
                hint="count tokens of responses that ran across an update, and ask again for those that were cut",
            )
            return
