"""The engine drops its weights when it sleeps, and what the trainer does not send is lost.

## What it checks
At sleep level 2 the engine has no draft model, and neither quantized weights nor a quantized cache.

## Why it matters
At level 2 vLLM drops buffers, scales of an fp8 cache and draft weights too. The trainer sends the weights again, and only those:
the rest is what memory held. One job had 52 samples, of which 32 were corrupted.

## How to fix
`sleep_level: 1`.

## When it can be wrong
In versions that restore them, or where the job does.

## Seen in
verl-project/verl#7904, NVIDIA-NeMo/RL#2631, vllm-project/vllm#29341, huggingface/trl#5312
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.preflight.job import Job


@rule("JOB022", "lost-at-sleep", severity="warning", on="job", when=lambda job: job["engine.sleep_level"].known)
def check(job: Job) -> Iterator[Problem]:
    if job.number("engine.sleep_level") != 2:
        return
    lost = []
    if job.flag("engine.draft"):
        lost.append(f"the draft model ({job['engine.draft'].place})")
    if job.text("engine.quantization") not in (None, "none"):
        lost.append(f"scales of its quantized weights, {job.said('engine.quantization')}")
    if (job.text("engine.kv_cache_dtype") or "").startswith(("fp8", "int8")):
        lost.append(f"scales of its cache, {job.said('engine.kv_cache_dtype')}")
    if lost:
        yield job.problem(
            f"at sleep level {job.said('engine.sleep_level')} the engine drops {' and '.join(lost)}, which no update brings back",
            at="engine.sleep_level",
            hint="set sleep_level to 1",
        )
