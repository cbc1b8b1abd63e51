"""The server computes other logprobs than a trainer with the same checkpoint.

## What it checks
- The server's prefill logprobs of fixed sequences equal the trainer's (`--trainer`, transformers by default).
- The limit is 1e-4 nats if the server says that it computes in float32 and quantizes nothing.
- Otherwise the limit is twice the difference of an engine started here from the same checkpoint with the same
  quantization.
- If no such engine could be started, the limit is 0.1 nats on average.

## Why it matters
- This check needs nothing but the server's ordinary API, and no packed copy and no stale cache can pass it.
- Off-policy corrections assume that this difference is small.

## How to fix
- If the weights are equal (REF030), the two programs compute differently: compare rope, norms, the dtype of the head
  and the quantization.
- Otherwise the server serves something else.

## When it can be wrong
- In bf16 a mixture of experts may route one token to other experts. That token is then far off.
- Only REF030 sees a damaged tensor that moves logprobs by less than the arithmetic does.

## Seen in
verl, NeMo-RL and slime guides: train/rollout mismatch; vLLM 0.32 on CPUs after `reload_weights` of a tied model
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.running_servers.comparability import compare_scores, is_within_tolerance
from ckptcheck.live.refit.running_servers.trace import ServerEvidence


@rule(
    "REF031",
    "other-logprobs-served",
    severity="error",
    on="servers",
    when=lambda evidence: bool(evidence.trainer_scores or evidence.trainer_skipped),
)
def check(evidence: ServerEvidence) -> Iterator[Problem]:
    if not evidence.trainer_scores or evidence.trainer is None:
        raise Skip(evidence.trainer_skipped)
    skip_reason = ""
    for server in evidence.servers:
        difference = compare_scores(server.scores, evidence.trainer_scores)
        if difference is None:
            reason = server.dead_reason or server.refusals.get("logprobs") or f"{server.url} gave no logprobs"
            skip_reason = skip_reason or reason
            continue
        reference, method = evidence.reference, server.info.layout.quantization
        is_same_method = reference is not None and reference.info.layout.quantization == method
        floor = (
            compare_scores(reference.scores, evidence.trainer_scores)
            if reference is not None and is_same_method
            else None
        )
        # quantized numbers keep their few bits, whatever dtype they are computed in
        dtype = server.info.dtype if not method else ""
        if is_within_tolerance(difference, dtype, floor):
            continue
        is_reference_off = floor is not None and not is_within_tolerance(floor, dtype)
        yield Problem(
            f"the logprobs of {server.url} and of {evidence.trainer.name} with {evidence.target} differ by up to"
            f" {difference.most:.3g} nats, {difference.mean:.3g} on average"
            + (
                "; an engine started here from the same checkpoint is as far off: the two compute differently"
                if is_reference_off
                else ""
            ),
            hint="compare the configs of both sides"
            if is_reference_off
            else "see which weights differ, and have it load the checkpoint again; if none do, compare the configs of both sides",
        )
    if skip_reason:
        raise Skip(skip_reason)
