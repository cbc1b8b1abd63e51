"""The engine uses cascade attention, which computes other logprobs on some GPUs.

## What it checks
Cascade attention is off: through `disable_cascade_attn`, or because vLLM is 0.18 or newer.

## Why it matters
On GPUs other than Hopper (A100, L20, B200) cascade attention gives other results than the trainer's attention, most with long
texts. Users of verl saw gradient norms explode and `rollout_probs_diff_mean` grow.

## How to fix
`--disable-cascade-attn`; in verl `+actor_rollout_ref.rollout.engine_kwargs.vllm.disable_cascade_attn=True`.

## When it can be wrong
On Hopper GPUs, and where prompts share no prefix.

## Seen in
vllm-project/vllm#22103, verl-project/verl#3595, vllm-project/vllm#36318
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job


@rule(
    "JOB006",
    "cascade-attention",
    severity="warning",
    on="job",
    when=lambda job: job.engine == "vllm" and job["engine.cascade_attention"].is_known,
)
def check(job: Job) -> Iterator[Problem]:
    setting = job["engine.cascade_attention"]
    if setting.value is True and (setting.status == "set" or job.engine_version):
        yield job.problem(
            f"cascade attention is on ({setting.place}): on GPUs other than Hopper the engine's logprobs"
            f" then differ from the trainer's",
            at="engine.cascade_attention",
            hint="set disable_cascade_attn",
        )
