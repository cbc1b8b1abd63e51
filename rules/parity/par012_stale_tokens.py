"""Tokens are older, or newer, than the weights that scored them.

## What it checks
The weight version of every token against that of the trainer, where both are numbers. A token may be at most `--set max-lag`
versions older (1 by default, as in one-step-off training, and what the job allows with `--job`), and never newer. In a job without
a correction, and without the engine's logprobs in its loss, no token is older.

## Why it matters
- Every version of lag is a step off policy. It looks like a gap between engine and trainer although there is none.
- A loss without them recomputes the old logprobs with the weights of now. Its ratio is 1 until the next optimizer step of the same
  batch, so that its clip never acts, however old the tokens are.
- Tokens that are newer than the trainer's weights mean that the trainer was resumed from an older step than its engines.

## How to fix
Compare with the trainer's logprobs at the version of the tokens. Where you want the lag, say how much: `--set max-lag`.

## When it can be wrong
A version that counts calls of the update API, and not steps, is ahead of the trainer's own count.

## Seen in
THUDM/slime#1695 (after a resume), volcengine/verl#5721, PipelineRL (lag grew with the first vLLM V1 path),
NovaSky-AI/SkyRL#1315 (asynchronous, and the clip is off), radixark/miles#1829, volcengine/verl#791
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollout_queries import compute_version_lag
from ckptcheck.text.formatting import count

if TYPE_CHECKING:
    from ckptcheck.jobs.job import Job


@rule(
    "PAR012",
    "stale-tokens",
    severity="warning",
    on="rollouts",
    when=lambda evidence: evidence.has_both_sides and "version_spans" in evidence.rollouts,
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    lag = compute_version_lag(evidence)
    if lag is None:
        raise Skip("the file does not record the versions of the tokens and of the trainer's weights as numbers")
    newest, oldest = lag
    if oldest > evidence.thresholds.lag:
        text = f"tokens are up to {count(oldest, 'version')} older than the weights that the trainer scored with"
        yield evidence.problem(
            text,
            "algorithm.lag",
            hint="score with the weights that drew them, or pass --set max-lag if you want that lag",
        )
    elif oldest > 0 and evidence.job is not None:
        yield from _find_inert_clip(evidence, evidence.job, oldest)
    if newest < 0:
        text = f"tokens are up to {count(-newest, 'version')} newer than the weights that the trainer scored with"
        yield Problem(text, hint="check whether the trainer was resumed from an older step than its engines")


def _find_inert_clip(evidence: RolloutEvidence, job: Job, oldest: int) -> Iterator[Problem]:
    """Yield a problem where older tokens enter a loss whose ratio does not know it.

    Without a correction, the weights of now compute the old logprobs too: ratio and clip see no difference to the engine's.
    """
    is_blind = job.text("algorithm.correction") == "none" and job.flag("algorithm.uses_rollout_logprobs") is False
    if job.flag("algorithm.bypass") or not (is_blind or job.flag("algorithm.forced_ratio")):
        return
    clip = evidence.metrics.clip
    yield evidence.problem(
        f"tokens are up to {count(oldest, 'version')} older than the weights that the trainer scored with, and the loss cannot see"
        f" it: its old logprobs are of these weights too, so that its ratio starts at 1 for every token. Against the engine's"
        f" logprobs, {evidence.metrics.clipped:.2%} are below {1 - clip.low:g} or above {1 + clip.high:g}",
        "algorithm.forced_ratio" if job.flag("algorithm.forced_ratio") else "algorithm.correction",
        "algorithm.lag",
        hint="turn on an importance correction, or take the engine's logprobs as the old ones",
    )
