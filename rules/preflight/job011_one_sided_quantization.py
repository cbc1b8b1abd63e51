"""The engine is quantized, the trainer is not, and no importance correction is on.

## What it checks
Where the engine quantizes its weights or its KV cache, the trainer computes the same way (fp8, fake quantization), or an
importance correction is on.

## Why it matters
The policy that acts is not the policy that is trained. With the same weights, the gap of Qwen3.6-35B-A3B was 0.0279 nats without
matching fake quantization and 0.0118 with it.

## How to fix
Turn on a correction (truncated importance sampling), or quantize on both sides.

## When it can be wrong
The trainer's quantization is set in a place that this rule does not read.

## Seen in
NovaSky-AI/SkyRL#1862, NeMo-RL's guide ("High-precision training with FP8 inference")
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job


@rule(
    "JOB011",
    "one-sided-quantization",
    severity="warning",
    on="job",
    when=lambda job: job["algorithm.correction"].status != "unknown",
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved("engine.quantization", "engine.kv_cache_dtype", "algorithm.correction")
    if job.flag("trainer.fp8") or job.text("algorithm.correction") != "none":
        return
    checkpoint = job.checkpoints.get("checkpoint.model")
    no_correction = f"and no importance correction is on ({job['algorithm.correction'].place})"
    if job.text("engine.quantization") not in (None, "none"):
        yield job.problem(
            f"the engine quantizes its weights: {job.describe('engine.quantization')}; the trainer computes in"
            f" {job.text('trainer.dtype') or 'full precision'}, {no_correction}",
            at="engine.quantization",
            hint="turn on truncated importance sampling, or quantize on both sides",
        )
    elif checkpoint is not None and checkpoint.quantized not in (None, "none"):
        yield job.problem(
            f"the engine's checkpoint is quantized ({checkpoint.quantized}); the trainer computes in"
            f" {job.text('trainer.dtype') or 'full precision'}, {no_correction}",
            at="checkpoint.model",
            hint="turn on truncated importance sampling, or quantize on both sides",
        )
    if (cache_dtype := job.text("engine.kv_cache_dtype")) is not None and cache_dtype.startswith(
        ("fp8", "int8", "nvfp4")
    ):
        yield job.problem(
            f"the engine keeps keys and values in {job.describe('engine.kv_cache_dtype')}, the trainer does not, {no_correction}",
            at="engine.kv_cache_dtype",
            hint="turn on truncated importance sampling",
        )
    elif job.text("engine.quantization") in (None, "none"):
        job.require_read("checkpoint.model", "config.json")
