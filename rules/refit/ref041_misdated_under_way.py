"""The engine's word for which tokens of a running request are of the new weights is wrong.

## What it checks
With `--pause MODE` a request runs in every sync. The same request was answered before by the old weights alone, and its tokens are
decoded again by the new ones; so its logprobs tell from which token on the new weights were used. The engine's version of each
token has to change there.

## Why it matters
Filters of staleness, and importance weights of partly old rollouts, go by these versions. One that is stamped at the end of a
response calls all of it fresh.

## How to fix
Send the version with the update, and read versions per token. Where they are wrong, keep the time of the update instead.

## When it can be wrong
Weights so close that a token's logprob does not move look old one token longer, and any place among such tokens is taken for right.
Where the old weights do not repeat themselves, as kernels of GPUs may not, nothing is said.

## Seen in
rllm#622 stamps the version when a response is complete; vllm-project/vllm#54443; radixark/miles#2244
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.refit.trace import RefitTrace


@rule(
    "REF041",
    "misdated-under-way",
    severity="warning",
    on="refit",
    when=lambda trace: any(sync.passage for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    passages = [(sync.number, sync.passage) for sync in trace.syncs if sync.passage is not None]
    for number, seen in passages:
        if not seen.misdated:
            continue
        since = f"are of the new weights from number {seen.first} on" if seen.first else "are all of the old weights"
        told = f"that from number {seen.said} on they are of the new ones" if seen.said else "so of none"
        yield Problem(
            f"in sync {number} (pause {seen.pause}) tokens of the running request {since}, and the engine says {told}",
            hint="do not filter by the engine's versions of tokens; keep the time of the update instead",
        )
        return
    if not any(seen.dates for _, seen in passages):
        raise Skip("the engine says of no token which weights it is of")
    if not any(seen.known for _, seen in passages):
        raise Skip("the old weights do not repeat themselves, so it cannot be seen where the new ones begin")
