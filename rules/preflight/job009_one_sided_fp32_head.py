"""Only one side computes the output head in float32.

## What it checks
Trainer and engine both compute the head in float32, or neither does.

## Why it matters
Two sides that round alike agree better than one that rounds and one that does not: float32 on one side alone makes the gap
larger than on none (root mean square 0.041 against 0.031 nats for both, Qwen2.5-0.5B).

## How to fix
vLLM: `--hf-overrides '{"head_dtype": "float32"}'`; SGLang: `--enable-fp32-lm-head`; NeMo-RL: `fp32_lm_head` and
`NRL_VLLM_FP32_LM_HEAD=1`; PipelineRL: the one `fp32_lm_head` at the top.

## When it can be wrong
Not known. Where nothing says what the trainer does, nothing is said.

## Seen in
NVIDIA-NeMo/RL#3936, ServiceNow/Fast-LLM#525, huggingface/trl#4303, PipelineRL's move to vLLM V1
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.preflight.job import Job


@rule(
    "JOB009",
    "one-sided-fp32-head",
    severity="warning",
    on="job",
    when=lambda job: job.flag("trainer.fp32_head") is not None or job["engine.fp32_head"].status == "set",
)
def check(job: Job) -> Iterator[Problem]:
    job.need("trainer.fp32_head", "engine.fp32_head")
    trainer, engine = job.flag("trainer.fp32_head"), job.flag("engine.fp32_head")
    if trainer is None or engine is None:
        raise Skip(f"in which precision {job.framework}'s trainer computes the head is in no setting")
    if trainer != engine:
        side, other = ("trainer", "engine") if trainer else ("engine", "trainer")
        yield job.problem(
            f"the {side} computes the output head in float32 ({job[f'{side}.fp32_head'].place}), the {other} does not"
            f" ({job[f'{other}.fp32_head'].place})",
            at=f"{side}.fp32_head",
            hint="do it on both sides or on neither",
        )
