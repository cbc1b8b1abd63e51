"""The importance weights of tokens that agree vanish, or the loss does not use them.

## What it checks
Engine and trainer agree token by token: the mean of exp|Δ| is below 1.05 and KL below 0.01. Then:

- With `--job`: the weights that the job's loss has, with its own bounds. The rule reports a mean below a half.
- With `--job`, too: a loss that ignores the correction which the job asks for.
- Without: the exponential of the *sum* of log ratios over a response, where their mean is not 0 within its error. The rule reports
  a median below a half or above 2.

## Why it matters
- The product over a response grows with its length: -0.001 a token is a weight of 0.09 over 2,400 tokens, and of 0.0003 over 8,000.
  Bounds do not help: a cut has an upper end, and a mask leaves out what is large.
- The loss, the reward and the gap look healthy, and the gradient is a tenth or a thousandth.
- Noise does not do this. The mean ratio of tokens that the engine drew by these logprobs is 1, whatever the trainer is; one that
  is not says that the engine drew from another distribution (top-p, a temperature), or that logprobs were changed later.

## How to fix
- TRL: `vllm_importance_sampling_mode: token_truncate` (the default, sequence_mask, is a product). verl: `rollout_is: token`.
  NeMo-RL: `sequence_level_importance_ratios: false`. SkyRL: `tis_ratio_type: token`. ROLL: `weight_type: token` or `geometric`.
- Then look for what all tokens share: `ckptcheck rule PAR029`.

## When it can be wrong
Without `--job` the rule does not know whether the loss has such weights. Tokens of very different weights are off policy in
earnest, and then a small weight is right; their gap is above the limits.

## Seen in
huggingface/trl#5814 (0.4 to 0.7, with equal logprobs) and #4772 (above the cap), NVIDIA-NeMo/RL#2269 (0.06, and 0.9999 by tokens),
linkedin/Liger-Kernel#1088 (TRL's loss ignores the ratio)
"""

from collections.abc import Iterator
from math import inf, log, sqrt

from ckptcheck import Problem, rule
from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.metrics.importance_weights import Correction, compute_log_ratios, exponentiate
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.thresholds import Thresholds
from ckptcheck.text.formatting import count

KEPT = 0.5
"""The least share of its gradient that a loss has to keep. The public reports lie below, or at it (0.569)."""
CERTAIN = 5.0
"""Standard errors from which a mean ratio is not 1."""
FORMULAS = {
    "token": "the ratio of a token",
    "sequence": "the product of the ratios of a response",
    "geometric": "the mean of the ratios of a response",
}


@rule(
    "PAR084",
    "vanishing-weights",
    severity="error",
    on="rollouts",
    when=lambda evidence: evidence.has_both_sides and evidence.rollouts.metadata.sampled_by == "engine",
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    metrics, limits, job = evidence.metrics, Thresholds(), evidence.job
    if (
        job is not None
        and evidence.correction == Correction()
        and job.text("algorithm.correction") not in ("none", None)
    ):
        yield job.problem(
            f"the loss ignores the correction {job.describe('algorithm.correction')}: every weight is 1, and the gap of"
            f" {metrics.abs_mean:.3g} nats a token is not corrected",
            at="algorithm.weight",
            hint="take a loss that gets the ratio, or a release in which this one does",
        )
        return
    # Where tokens do not agree, that is the finding (PAR020), and small weights are right.
    if not (metrics.mult_prob_error <= limits.mult_prob_error and metrics.k3 <= limits.kl):
        return
    if evidence.correction is not None:
        yield from _judge_loss(evidence)
        return
    if job is not None and (name := job.text("algorithm.correction")) is not None:
        raise Skip(f"how the job's correction ({name}) weighs tokens is not known")
    logs = compute_log_ratios(metrics)["sequence"]
    middle = float(sorted(logs.tolist())[len(logs) // 2])
    error = sqrt(max(metrics.chi2 + 1 - metrics.ratio**2, 0.0) / metrics.tokens)
    if abs(middle) < log(1 / KEPT) or not abs(metrics.ratio - 1) > CERTAIN * error:
        return
    weights = exponentiate(logs)
    longest = int(metrics.sequence_tokens.max())
    yield Problem(
        f"the tokens agree (mean exp|Δ| {metrics.mult_prob_error:.4g}), but weights of sequences that are exp of a sum are"
        f" {weights.min():.3g} to {weights.max():.3g} here: a bias of {-metrics.k1:.3g} nats a token adds up over as many as"
        f" {count(longest, 'token')}",
        hint="--job FILE says whether the loss has such weights (TRL's does by default); weights of tokens do not add up",
        severity="warning",
    )


def _judge_loss(evidence: RolloutEvidence) -> Iterator[Problem]:
    """Yield a problem where the loss of the job keeps too little of the gradient."""
    weights, correction, job = evidence.correction_weights, evidence.correction, evidence.job
    if weights is None or weights.mean >= KEPT:
        return
    assert correction is not None
    assert job is not None
    is_masked = 2 * (weights.lost or 0) >= weights.number
    if is_masked:
        what = "token" if "token" in (correction.weight, correction.mask) else "sequence"
        number = (
            f"all {count(weights.number, what)}"
            if weights.lost == weights.number
            else f"{weights.lost:,} of {weights.number:,}"
        )
        bounds = [f"below {correction.mask_low:g}"] if correction.mask_low > 0 else []
        bounds += [f"above {correction.mask_high:g}"] if correction.mask_high < inf else []
        clause = f"{number} are left out, because {FORMULAS[correction.mask]} is {' or '.join(bounds)}"
    else:
        clause = f"a weight is {FORMULAS[correction.weight]}, {weights.least:.3g} to {weights.greatest:.3g}"
    part = "mask" if is_masked else "weight"
    names = [f"algorithm.{part}{end}" for end in ("", "_high", "_low")]
    name = next((name for name in names if job[name].leaf is not None), names[0])
    place = "" if job[name].leaf is not None else f" ({job[name].place})"
    yield job.problem(
        f"the tokens agree (mean exp|Δ| {evidence.metrics.mult_prob_error:.4g}), and the loss keeps {weights.mean:.2g} of their"
        f" gradient: {clause}{place}",
        at=name,
        hint="take the weights of tokens, or the mean over a response, and bounds that such a gap does not reach",
    )
