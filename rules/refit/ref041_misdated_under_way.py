"""The engine reports the wrong weight version for tokens of a running request.

## What it checks
- With `--pause MODE` a request runs during every sync. The old weights alone answered the same request before, and
  the new weights decode its tokens again. From these logprobs the trial finds the first token that the new weights
  computed.
- The version that the engine reports per token changes at that token.

## Why it matters
- Staleness filters and importance weights of partly old rollouts use these versions. A version that is stamped at the
  end of a response calls all of its tokens fresh.

## How to fix
- Send the version with the update, and read versions per token. If they are wrong, use the time of the update
  instead.

## When it can be wrong
- If two versions give a token nearly the same logprob, the token could be of either. The rule accepts any switch
  among such tokens.
- If the old weights do not repeat themselves (kernels on GPUs may not), the rule is skipped.

## Seen in
rllm#622 stamps the version when a response is complete; vllm-project/vllm#54443; radixark/miles#2244
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.trace import RefitTrace


@rule(
    "REF041",
    "misdated-under-way",
    severity="warning",
    on="refit",
    when=lambda trace: any(sync.inflight_request for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    requests = [(sync.number, sync.inflight_request) for sync in trace.syncs if sync.inflight_request is not None]
    for number, request in requests:
        if not request.has_version_mismatch:
            continue
        actual = f"from token {request.first_new_token} on" if request.first_new_token else "no token"
        reported = f"from token {request.reported_new_token} on" if request.reported_new_token else "for no token"
        yield Problem(
            f"in sync {number} (pause {request.pause}), the new weights computed the running request {actual}, but the"
            f" engine reports the new version {reported}",
            hint="do not filter by the engine's version of a token; keep the time of the update instead",
        )
        return
    if not any(request.has_versions for _, request in requests):
        raise Skip("the engine reports no weight version per token")
    if not any(request.is_observable for _, request in requests):
        raise Skip("the old weights do not repeat their own logprobs, so the switch to the new ones cannot be located")
