"""The engine drops weights when it sleeps that no update sends again.

## What it checks
At sleep level 2 the engine has no draft model, no quantized weights and no quantized KV cache. It is an error where TRL is of
a version that loads the first checkpoint again when the engine wakes, after the update: 0.28 to 1.9.

## Why it matters
- At level 2 vLLM drops buffers, the scales of an fp8 cache and draft weights too.
- The trainer sends only the model's weights again. The rest is whatever the memory held.
- TRL before 1.10 then generates every rollout with the weights of the start, and the importance correction hides it.
- In one job 32 of 52 samples were corrupted.

## How to fix
`sleep_level: 1`. In TRL: version 1.10 or later, or `vllm_enable_sleep_mode: false`.

## When it can be wrong
In versions of vLLM that restore them, or where the job does.

## Seen in
verl-project/verl#7904, NVIDIA-NeMo/RL#2631, vllm-project/vllm#29341, huggingface/trl#5312
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job


@rule("JOB022", "lost-at-sleep", severity="warning", on="job", when=lambda job: job["engine.sleep_level"].is_known)
def check(job: Job) -> Iterator[Problem]:
    if job.number("engine.sleep_level") != 2:
        return
    if (program := job.text("update.undone_by")) not in (None, "none"):
        yield job.problem(
            f"{program} loads the first checkpoint into the engine again after every update, where the engine sleeps"
            f" ({job['update.undone_by'].place}): all rollouts come from the weights of the start",
            at="update.undone_by",
            severity="error",
            hint="take TRL 1.10 or later, or turn the sleep mode off",
        )
    dropped = []
    if job.flag("engine.draft"):
        dropped.append(f"the draft model ({job['engine.draft'].place})")
    if job.text("engine.quantization") not in (None, "none"):
        dropped.append(f"scales of its quantized weights, {job.describe('engine.quantization')}")
    if (job.text("engine.kv_cache_dtype") or "").startswith(("fp8", "int8")):
        dropped.append(f"scales of its cache, {job.describe('engine.kv_cache_dtype')}")
    if dropped:
        yield job.problem(
            f"at sleep level {job.describe('engine.sleep_level')} the engine drops {' and '.join(dropped)},"
            f" which no update brings back",
            at="engine.sleep_level",
            hint="set sleep_level to 1",
        )
