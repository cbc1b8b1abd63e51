"""The server gives tokens other logprobs than the trainer does with the checkpoint it should serve.

## What it checks
The logprobs of fixed sequences by prefill are those of the trainer (`--trainer`, transformers by default): within 1e-4 where the
server says that it computes in float32 and quantizes nothing, else within twice the gap of an engine started here from the same
checkpoint with the same quantization; where none could be started, within 0.1 nats on average.

## Why it matters
It is the one check that needs nothing of the server but its ordinary API, and that no packed copy and no stale cache can
pass. Off-policy corrections assume that this gap is small.

## How to fix
With equal weights (REF030) the two compute differently: compare rope, norms, the dtype of the head, the quantization. Else the
server serves something else.

## When it can be wrong
In bf16 a mixture of experts may route a token otherwise; one token is then far off. A damaged tensor that moves logprobs by
less than the arithmetic does is only seen by REF030.

## Seen in
verl, NeMo-RL and slime guides: train/rollout mismatch; vLLM 0.32 on CPUs after `reload_weights` of a tied model
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.refit.allowed import between, fits
from ckptcheck.refit.attached import Attached


@rule(
    "REF031",
    "other-logprobs-served",
    severity="error",
    on="servers",
    when=lambda evidence: bool(evidence.truth or evidence.untold),
)
def check(evidence: Attached) -> Iterator[Problem]:
    if not evidence.truth or evidence.trainer is None:
        raise Skip(evidence.untold)
    unseen = ""
    for seen in evidence.servers:
        apart = between(seen.scores, evidence.truth)
        if apart is None:
            unseen = unseen or seen.dead or seen.refused.get("logprobs") or f"{seen.url} gave no logprobs"
            continue
        reference, method = evidence.reference, seen.about.layout.quantization
        alike = reference is not None and reference.about.layout.quantization == method
        floor = between(reference.scores, evidence.truth) if reference is not None and alike else None
        dtype = seen.about.dtype if not method else ""  # numbers of few bits stay so, whatever they are computed in
        if fits(apart, dtype, floor):
            continue
        path = floor is not None and not fits(floor, dtype)
        yield Problem(
            f"{seen.url} and {evidence.trainer.name} with {evidence.target} are up to {apart.most:.3g} nats apart,"
            f" {apart.mean:.3g} on average"
            + ("; so is an engine started here from it: the two compute differently" if path else ""),
            hint="compare the configs of both sides"
            if path
            else "see which weights differ, and have it load the checkpoint again",
        )
    if unseen:
        raise Skip(unseen)
