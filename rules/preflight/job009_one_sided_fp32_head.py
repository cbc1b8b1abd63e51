"""Only one side computes the output head in float32.

## What it checks
Trainer and engine both compute the output head (lm_head) in float32, or neither does.

## Why it matters
Two sides that both round agree better than one that rounds and one that does not. float32 on one side alone makes the gap
larger than float32 on neither (root mean square 0.041 nats, against 0.031 with float32 on both, Qwen2.5-0.5B).

## How to fix
- vLLM: `--hf-overrides '{"head_dtype": "float32"}'`.
- SGLang: `--enable-fp32-lm-head`.
- NeMo-RL: `fp32_lm_head` and `NRL_VLLM_FP32_LM_HEAD=1`.
- slime: remove `--sglang-enable-fp32-lm-head`: Megatron's head computes in bf16, and slime casts only its logits to float32. The
  rule is skipped for a model of your own (`--custom-model-provider-path`), which may compute in either dtype.
- PipelineRL: the one `fp32_lm_head` at the top level.

## When it can be wrong
No case is known. Where no setting says what the trainer does, the rule is skipped.

## Seen in
NVIDIA-NeMo/RL#3936, ServiceNow/Fast-LLM#525, huggingface/trl#4303, PipelineRL's move to vLLM V1
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.jobs.job import Job


@rule(
    "JOB009",
    "one-sided-fp32-head",
    severity="warning",
    on="job",
    when=lambda job: job.flag("trainer.fp32_head") is not None or job["engine.fp32_head"].status == "set",
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved("trainer.fp32_head", "engine.fp32_head")
    trainer, engine = job.flag("trainer.fp32_head"), job.flag("engine.fp32_head")
    if trainer is None or engine is None:
        raise Skip(f"no setting says in which precision {job.framework}'s trainer computes the head")
    if trainer != engine:
        side, other = ("trainer", "engine") if trainer else ("engine", "trainer")
        yield job.problem(
            f"the {side} computes the output head in float32 ({job[f'{side}.fp32_head'].place}), the {other} does not"
            f" ({job[f'{other}.fp32_head'].place})",
            at=f"{side}.fp32_head",
            hint="do it on both sides or on neither",
        )
