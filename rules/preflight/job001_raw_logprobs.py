"""The engine returns logprobs from before the temperature, and the trainer computes them after it.

## What it checks
Where rollouts are sampled at another temperature than 1, or with top-p or top-k, and the engine's logprobs are used, the engine
returns processed logprobs: vLLM's `--logprobs-mode processed_logprobs`, SGLang without `SGLANG_RETURN_ORIGINAL_LOGPROB`.

## Why it matters
vLLM's default is `raw_logprobs`, of the model's own distribution; the trainer divides its logits by the temperature. Every ratio
of the two is then off by a factor that has nothing to do with the policy, and a correction corrects for it.

## How to fix
Set `logprobs_mode: processed_logprobs` (`--logprobs-mode processed_logprobs`).

## When it can be wrong
A trainer that computes at temperature 1 on purpose, as its framework's configuration cannot say.

## Seen in
PipelineRL's move to vLLM V1, vllm-project/vime#64, huggingface/trl#4159, verl-project/verl#4162
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.preflight.job import Job


@rule(
    "JOB001",
    "raw-logprobs",
    severity="error",
    on="job",
    when=lambda job: bool(job.flag("algorithm.uses_rollout_logprobs") or job.flag("rollout.logprobs")),
)
def check(job: Job) -> Iterator[Problem]:
    job.need("engine.logprobs", "rollout.temperature", "rollout.top_p", "rollout.top_k")
    if job.text("engine.logprobs") != "raw":
        return
    temperature, trainer = job.number("rollout.temperature"), job.number("trainer.temperature")
    if temperature == 0 or (trainer == 1 and temperature != 1):  # greedy: both are the same; the other is JOB002
        return
    top_p, top_k = job.number("rollout.top_p"), job.number("rollout.top_k")
    bends = {"temperature": temperature not in (None, 1), "top_p": (top_p or 1) < 1, "top_k": (top_k or 0) > 0}
    bent = [name for name, bending in bends.items() if bending]
    if bent:
        what = ", ".join(f"{name} {job.said(f'rollout.{name}')}" for name in bent)
        use = (
            "the loss uses them"
            if job.flag("algorithm.uses_rollout_logprobs")
            else "they are compared with the trainer's"
        )
        yield job.problem(
            f"the engine returns raw logprobs ({job['engine.logprobs'].place}), from before {what}, and {use}",
            at="engine.logprobs" if job["engine.logprobs"].leaf else f"rollout.{bent[0]}",
            hint="set logprobs_mode to processed_logprobs"
            if job.engine == "vllm"
            else "take SGLANG_RETURN_ORIGINAL_LOGPROB out",
        )
