"""A sync cut a running request short, although the pause mode keeps it, or without saying so.

## What it checks
- With `--pause MODE` a request runs during every sync. It continues to the number of tokens that it asks for.
- With `abort` it may end earlier, and the engine then reports it as aborted.

## Why it matters
- A truncated answer that is reported as finished gets a reward as if the policy had meant to stop there.
- If the job expects all requests to continue, an aborted one is missing from its batch.

## How to fix
- Count the tokens, and send truncated requests again.

## When it can be wrong
- An end token does not end this request: it goes on past end tokens.
- A request that finishes before the update begins is whole.

## Seen in
vLLM's and SGLang's pause modes: abort drops running requests, and vLLM 0.32 in one process does so silently
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.refit.trace import RefitTrace


@rule(
    "REF040",
    "lost-under-way",
    severity="error",
    on="refit",
    when=lambda trace: any(sync.inflight_request for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    for sync in trace.syncs:
        request = sync.inflight_request
        if request is not None and request.is_truncated:
            finish = f'the finish reason "{request.finish}"' if request.finish else "no finish reason"
            yield Problem(
                f"in sync {sync.number}, the running request (pause {request.pause}) ended after {request.tokens} of"
                f" {request.requested_tokens} tokens, and the engine gives {finish}",
                hint="count the tokens of responses that ran across an update, and send again those that were cut",
            )
            return
