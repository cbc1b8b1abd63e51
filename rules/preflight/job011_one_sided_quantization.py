"""The engine computes quantized, the trainer does not, and nothing corrects for it.

## What it checks
Where the engine quantizes weights or its cache of keys and values, the trainer computes alike (fp8, fake quantization), or an
importance correction is on.

## Why it matters
The policy that acts is another one than the policy that is trained. With the same weights the gap of Qwen3.6-35B-A3B was 0.0279
nats without and 0.0118 with matching fake quantization.

## How to fix
Turn on a correction (truncated importance sampling), or quantize on both sides.

## When it can be wrong
If the trainer's quantization is set where this does not look.

## Seen in
NovaSky-AI/SkyRL#1862, NeMo-RL's guide ("High-precision training with FP8 inference")
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.preflight.job import Job


@rule(
    "JOB011",
    "one-sided-quantization",
    severity="warning",
    on="job",
    when=lambda job: job["algorithm.correction"].status != "unknown",
)
def check(job: Job) -> Iterator[Problem]:
    job.need("engine.quantization", "engine.kv_cache_dtype", "algorithm.correction")
    if job.flag("trainer.fp8") or job.text("algorithm.correction") != "none":
        return
    named = job.checkpoints.get("checkpoint.model")
    uncorrected = f"and no importance correction is on ({job['algorithm.correction'].place})"
    if job.text("engine.quantization") not in (None, "none"):
        yield job.problem(
            f"the engine quantizes its weights: {job.said('engine.quantization')}; the trainer computes in"
            f" {job.text('trainer.dtype') or 'full precision'}, {uncorrected}",
            at="engine.quantization",
            hint="turn on truncated importance sampling, or quantize on both sides",
        )
    elif named is not None and named.quantized not in (None, "none"):
        yield job.problem(
            f"the engine's checkpoint is quantized ({named.quantized}); the trainer computes in"
            f" {job.text('trainer.dtype') or 'full precision'}, {uncorrected}",
            at="checkpoint.model",
            hint="turn on truncated importance sampling, or quantize on both sides",
        )
    if (how := job.text("engine.kv_cache_dtype")) is not None and how.startswith(("fp8", "int8", "nvfp4")):
        yield job.problem(
            f"the engine keeps keys and values in {job.said('engine.kv_cache_dtype')}, the trainer does not, {uncorrected}",
            at="engine.kv_cache_dtype",
            hint="turn on truncated importance sampling",
        )
