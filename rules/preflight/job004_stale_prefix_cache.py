"""The prefix cache, or a cache of encoder outputs, outlives weight updates.

## What it checks
An engine with prefix caching clears its cache when weights change, or salts it by weight version. An engine that sees or hears
clears the outputs of its encoder too, where the encoder is trained.

## Why it matters
- Later requests with the same beginning (a system prompt, the next sample of a group) reuse keys and values of older weights,
  however old.
- The gap between trainer and engine grows step by step and is gone after a restart. It looks like a bug of the optimizer, and
  teams lost weeks on it.

## How to fix
- NeMo-RL: `recompute_kv_cache_after_weight_updates: true`; with images, `reset_encoder_cache_after_weight_update: true` and
  `in_flight_weight_updates: false`.
- prime-rl: `use_prefix_cache_salt`; with images, `model.vlm.freeze_vision_encoder`.
- slime and miles: a pause mode other than `in_place`.
- PipelineRL: `enable-prefix-caching: false`.

## When it can be wrong
No two requests share a prefix of a whole block across an update. Requests that run while weights change keep their own keys and
values in any case. The encoder of the model is frozen in a way that ckptcheck does not know.

## Seen in
NVIDIA-NeMo/RL examples/configs/grpo_math_1B.yaml (`reset_encoder_cache_after_weight_update`),
NVIDIA-NeMo/RL#4018, NVIDIA-NeMo/RL#3152, PrimeIntellect-ai/prime-rl#1650, vllm-project/vllm#9744
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job


@rule(
    "JOB004",
    "stale-prefix-cache",
    severity="warning",
    on="job",
    when=lambda job: job["update.clears_cache"].status != "unknown",
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved("update.clears_cache", "engine.prefix_caching", "engine.keeps_encoder_cache")
    yield from _check_encoder(job)
    if job.flag("update.clears_cache") is False and job.flag("engine.prefix_caching"):
        yield job.problem(
            f"prefix caching is on ({job['engine.prefix_caching'].place}), and its cache is not cleared when weights change"
            f" ({job['update.clears_cache'].place}): later requests reuse keys and values of older weights",
            at="update.clears_cache" if job["update.clears_cache"].leaf else "engine.prefix_caching",
            hint="clear the cache at every update, or turn prefix caching off",
        )


def _check_encoder(job: Job) -> Iterator[Problem]:
    """Yield what is wrong with the cache of encoder outputs."""
    keeps, place = job.flag("engine.keeps_encoder_cache"), job["engine.keeps_encoder_cache"].place
    if keeps:
        yield job.problem(
            f"outputs of the engine's vision or audio encoder are kept when weights change ({place}): later requests with the same"
            " image reuse those of older weights",
            at="engine.keeps_encoder_cache" if job["engine.keeps_encoder_cache"].leaf else "engine.prefix_caching",
            hint="set reset_encoder_cache_after_weight_update to true, or freeze the encoder"
            if job.framework == "NeMo-RL"
            else "freeze the encoder",
        )
    elif keeps is False and job.flag("update.in_flight") and job.framework == "NeMo-RL":
        yield job.problem(
            f"the engine's encoder outputs are cleared at an update ({place}) while requests that need them run"
            f" ({job['update.in_flight'].place})",
            at="engine.keeps_encoder_cache",
            hint="set in_flight_weight_updates to false",
        )
