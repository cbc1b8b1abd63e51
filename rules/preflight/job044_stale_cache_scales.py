"""The scales of the engine's fp8 cache belong to older weights.

## What it checks
Where keys and values are kept in fp8 with scales (a checkpoint that ships them, a file of scales, or vLLM's
`calculate_kv_scales`), a weight update computes and sends new ones.

## Why it matters
- Scales are measured once: by whoever quantized the checkpoint, or by vLLM on its first request. The weights then change, and
  the scales do not: values beyond the old range are clipped.
- vLLM that sleeps between steps sets scales of the checkpoint to 1.0, or to 0 at level 2 (compressed-tensors), and an
  update of weights does not bring them back: wrong logprobs, or NaN.
- NeMo-RL computes and sends them at every refit. It refuses an fp8 cache over weights that are not fp8.

## How to fix
`kv_cache_dtype: auto`; or fp8 without scales (all 1.0), which an update cannot make stale; or start from a checkpoint without
scales.

## When it can be wrong
The framework sends scales in a way that ckptcheck does not know.

## Seen in
vllm-project/vllm#57163, vllm-project/vllm#45617, vllm-project/vllm#48310, NVIDIA-NeMo/RL#1212, NVIDIA-NeMo/RL
nemo_rl/models/generation/vllm/quantization/fp8.py (`init_fp8`)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job


@rule(
    "JOB044",
    "stale-cache-scales",
    severity="warning",
    on="job",
    when=lambda job: job.updates_weights and (job.text("engine.kv_cache_dtype") or "").startswith(("fp8", "nvfp4")),
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved("engine.cache_scales", "engine.quantization")
    if job.framework == "NeMo-RL":
        if job.engine == "vllm" and job["engine.quantization"].is_known and job.text("engine.quantization") != "fp8":
            yield job.problem(
                f"the cache is {job.describe('engine.kv_cache_dtype')} and the engine's weights are not fp8: NeMo-RL refuses that",
                at="engine.kv_cache_dtype",
                severity="error",
                hint="set vllm_cfg.precision to fp8, or kv_cache_dtype to auto",
            )
        return
    if job.flag("update.sends_cache_scales"):
        return
    scales, checkpoint = job.text("engine.cache_scales"), job.checkpoints.get("checkpoint.model")
    if scales not in (None, "none"):
        of, at = f"{scales} ({job['engine.cache_scales'].place})", "engine.cache_scales"
    elif checkpoint is not None and checkpoint.cache_scales:
        of, at = f"the checkpoint ({checkpoint.named})", "engine.kv_cache_dtype"
    else:
        job.require_read("checkpoint.model", "a tensor k_scale")
        return
    yield job.problem(
        f"the engine keeps keys and values in {job.describe('engine.kv_cache_dtype')} with the scales of {of}, and no weight update"
        " sends new ones: after the first update they belong to older weights",
        at=at,
        hint="set kv_cache_dtype to auto, or take the scales out",
    )
