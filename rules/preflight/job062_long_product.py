"""The correction is a product over all tokens of a long response.

## What it checks
An importance correction may weigh each token, or a response as a whole: `exp` of the sum of its tokens' differences. The rule
computes what a small bias makes of such a weight at the longest response: `exp(-bias * tokens)`. The bias is assumed: 0.001 a
token, and 0.01 where the engine's weights or cache are quantized. A weight below 0.01 is a warning, one below 0.1 an info, as is
one below the bound under which a mask leaves responses out.

An info, too, is a loss that multiplies two weights: the correction's, of old policy to engine, and its own, of new policy to old
(CISPO, VESPO, ROLL's TIS). Where the loss clips its own ratio instead, as PPO does, nothing is said.

## Why it matters
The bounds hold the weight from above alone. A small constant difference of kernels lets the weight of long responses go to 0: the
job learns from short ones, and the lower bound of a mask leaves the long ones out altogether. With TRL's default a user measured a
mean weight of 0.57, and 0.99 by token.

## How to fix
Weigh by token: `vllm_importance_sampling_mode: token_truncate` (TRL), `rollout_is=token` (verl), `tis_ratio_type=token` (SkyRL).

## When it can be wrong
Responses stay far below the longest length, or trainer and engine agree to the bit: measure it with a dump, then `--ignore JOB062`.
Two weights are what such a loss means off policy.

## Seen in
huggingface/trl#5814, NVIDIA-NeMo/RL#2269; two weights: SkyRL refuses those that count one difference twice (`cispo_loss`), and the
others multiply (verl's `compute_policy_loss_cispo`, slime's `vanilla_tis_function`)
"""

from collections.abc import Iterator
from math import exp

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job

PLAIN_BIAS, QUANTIZED_BIAS = 0.001, 0.01
"""Mean difference of a token's logprobs between trainer and engine."""
LEAST_WEIGHT, SMALL_WEIGHT = 0.01, 0.1


@rule(
    "JOB062",
    "long-product",
    severity="warning",
    on="job",
    when=lambda job: any(job[f"algorithm.{kind}"].status != "unknown" for kind in ("weight", "mask")),
)
def check(job: Job) -> Iterator[Problem]:
    yield from _check_second_weight(job)
    kinds = [kind for kind in ("weight", "mask") if job.text(f"algorithm.{kind}") == "sequence"]
    job.require_resolved(*(f"algorithm.{kind}" for kind in ("weight", "mask")), "rollout.response_length")
    length = job.number("rollout.response_length")
    if not kinds or not length:
        return
    quantized = job.text("engine.quantization") not in (None, "none", "auto")
    cache = (job.text("engine.kv_cache_dtype") or "").startswith(("fp8", "nvfp4"))
    bias = QUANTIZED_BIAS if quantized or cache else PLAIN_BIAS
    weight = exp(-bias * length)
    least = (job.number("algorithm.mask_low") or 0) if "mask" in kinds else 0
    if weight >= max(SMALL_WEIGHT, least):
        return
    why = f" (the engine's {'weights are' if quantized else 'cache is'} quantized)" if quantized or cache else ""
    bounds = [
        f"{'cut' if kind == 'weight' else 'masked above'} {'at ' if kind == 'weight' else ''}{bound:g}"
        for kind in kinds
        if (bound := job.number(f"algorithm.{kind}_high")) is not None
    ]
    if least:
        bounds.append(f"masked below {least:g}")
    bounded = f" is {' and '.join(bounds)}" if bounds else " has no bound here"
    at = f"algorithm.{kinds[0]}"
    yield job.problem(
        f"the weight of a sequence is a product over up to {int(length):,} tokens"
        f" ({job.describe('algorithm.correction')}), and{bounded}:"
        f" a bias of {bias:g} a token{why} makes it {weight:.1g}",
        at=at if job[at].leaf else "rollout.response_length",
        severity="warning" if weight < LEAST_WEIGHT else "info",
        hint="let the correction weigh each token: token_truncate, rollout_is=token or tis_ratio_type=token",
    )


def _check_second_weight(job: Job) -> Iterator[Problem]:
    """Yield a problem where the loss multiplies the correction's weight by one of its own."""
    first, second = job.text("algorithm.weight"), job.text("algorithm.loss_weight")
    # A known issue of both says what becomes of them.
    told = [met.leaf for met in job.issues if met.leaf is not None]  # a value may be a list, which has no hash
    if first in (None, "none") or second in (None, "none") or job["algorithm.loss_weight"].leaf in told:
        return
    cut = job.number("algorithm.weight_high")
    yield job.problem(
        f"two weights multiply in the loss: that of the correction, of the old policy to the engine"
        f" ({job.describe('algorithm.correction')}), {f'cut at {cut:g}' if cut else 'which has no bound here'}, and that of"
        f" {job.describe('algorithm.loss_weight')}, of the new policy to the old",
        at="algorithm.loss_weight",
        severity="info",
        hint="choose both bounds for their product, or leave one of the weights out",
    )
