"""A request with a LoRA adapter does not get what the adapter computes.

## What it checks
- The adapter is merged into a copy of the base model, and the engine is started cold from that copy. A request with the
  adapter gets the same logprobs, within rounding.
- Rounding is measured: the merged copy is scored a second time with every matrix moved by one unit in its last place. The
  tolerance is ten times that for the largest difference and three times on average, at least 1e-5 and 2e-6 nats.

## Why it matters
- The engine serves the base model, or scales the adapter differently from the trainer. Rollouts come from another
  policy than the one in training, and no call reports an error.

## How to fix
- If the engine returns the base model's logprobs, no module of the adapter matched: compare the names in
  adapter_model.safetensors with the modules for which the engine has LoRA.
- If it returns others, compare the scale: lora_alpha, r, use_rslora, alpha_pattern.

## When it can be wrong
- An engine that computes the adapter in a narrower dtype than the base model rounds more than the merged copy.

## Seen in
verl-project/verl#7495 (the engine got none of 399 LoRA tensors)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.logprob_diff import LogprobDiff
from ckptcheck.live.refit.lora.trace import LoraTrace, compare_scores

LEAST = LogprobDiff(1e-5, 2e-6)
"""Tolerance in nats where rounding is less."""


@rule("REF048", "adapter-not-served", severity="error", on="lora", when=lambda trace: trace.merged is not None)
def check(trace: LoraTrace) -> Iterator[Problem]:
    assert trace.loaded is not None
    assert trace.merged is not None
    rounding = trace.rounding
    tolerance = LogprobDiff(10 * rounding.most, 3 * rounding.mean) | LEAST
    gap, effect = compare_scores(trace.loaded.scores, trace.merged), compare_scores(trace.merged, trace.base)
    if gap.within(tolerance):
        if effect.within(tolerance):
            raise Skip("merged into the base model, the adapter moves no logprob by more than rounding does")
        return
    if compare_scores(trace.loaded.scores, trace.base).most <= trace.exact_tolerance:
        yield Problem(
            f"requests with the adapter get the logprobs of the base model; merged into it, the adapter moves them by up to"
            f" {effect.most:.2g} nats: the engine applies nothing of it",
            key=trace.adapter,
            hint="compare the names in adapter_model.safetensors with the modules for which the engine has LoRA",
        )
        return
    yield Problem(
        f"with the adapter, logprobs differ by up to {gap.most:.2g} nats, {gap.mean:.2g} on average, from those of a checkpoint"
        f" into which it is merged; rounding explains {tolerance.most:.2g} and {tolerance.mean:.2g}",
        key=trace.adapter,
        hint="compare the scale of the adapter (lora_alpha, r, use_rslora) and the modules that it changes on both sides",
    )
