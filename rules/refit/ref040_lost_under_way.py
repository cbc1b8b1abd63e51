"""A request that runs during a sync is cut short, or its tokens carry the wrong weight version.

## What it checks
- With `--pause MODE` a request runs during every sync. It continues to the number of tokens that it asks for. With `abort` it may
  end earlier, and the engine then reports it as aborted.
- The version that the engine reports per token changes where the weights do (a warning): the old weights alone answered the same
  request before, and the new weights decode its tokens again. Their logprobs show the first token of the new weights.

## Why it matters
- A truncated answer that is reported as finished gets a reward as if the policy had meant to stop there. If the job expects all
  requests to continue, an aborted one is missing from its batch.
- Staleness filters and importance weights of partly old rollouts use these versions. A version that is stamped at the end of a
  response calls all of its tokens fresh.

## How to fix
- Count the tokens, and send truncated requests again.
- Send the version with the update, and read versions per token. If they are wrong, use the time of the update instead.

## When it can be wrong
- An end token does not end this request: it goes on past end tokens. A request that finishes before the update begins is whole.
- If two versions give a token nearly the same logprob, the token could be of either. The rule accepts any switch among such tokens.
- If the old weights do not repeat themselves (kernels on GPUs may not), the rule is skipped.

## Seen in
vLLM's and SGLang's pause modes: abort drops running requests, and vLLM 0.32 in one process does so silently; rllm#622 stamps the
version when a response is complete; vllm-project/vllm#54443; radixark/miles#2244
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.trace import RefitTrace


@rule(
    "REF040",
    "lost-under-way",
    severity="error",
    on="refit",
    when=lambda trace: any(sync.inflight_request for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    requests = [(sync.number, sync.inflight_request) for sync in trace.syncs if sync.inflight_request is not None]
    for number, request in requests:
        if request.is_truncated:
            finish = f'the finish reason "{request.finish}"' if request.finish else "no finish reason"
            yield Problem(
                f"in sync {number}, the running request (pause {request.pause}) ended after {request.tokens} of"
                f" {request.requested_tokens} tokens, and the engine gives {finish}",
                hint="count the tokens of responses that ran across an update, and send again those that were cut",
            )
            break
    for number, request in requests:
        if request.has_version_mismatch:
            actual = f"from token {request.first_new_token} on" if request.first_new_token else "no token"
            reported = f"from token {request.reported_new_token} on" if request.reported_new_token else "for no token"
            yield Problem(
                f"in sync {number} (pause {request.pause}), the new weights computed the running request {actual}, but the"
                f" engine reports the new version {reported}",
                hint="do not filter by the engine's version of a token; keep the time of the update instead",
                severity="warning",
            )
            return
    if not any(request.has_versions for _, request in requests):
        raise Skip("the engine reports no weight version per token")
    if not any(request.is_observable for _, request in requests):
        raise Skip("the old weights do not repeat their own logprobs, so the switch to the new ones cannot be located")
