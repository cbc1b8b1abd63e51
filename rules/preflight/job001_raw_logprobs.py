"""The engine returns raw logprobs, and the trainer divides its logits by the temperature.

## What it checks
Applies where rollouts are sampled at a temperature other than 1, with top-p or top-k, or with a penalty (repetition, presence,
frequency, min-p), and the job uses the engine's logprobs.
The engine then has to return processed logprobs: vLLM with `--logprobs-mode processed_logprobs`, SGLang without
`SGLANG_RETURN_ORIGINAL_LOGPROB`.

## Why it matters
- vLLM's default is `raw_logprobs`: logprobs of the model's own distribution. The trainer divides its logits by the temperature.
- vLLM applies penalties after it took raw logprobs, and before processed ones. SGLang applies them before either, so that there
  penalties do not make a difference (JOB026 reports them).
- Every ratio of the two is off by a factor that has nothing to do with the policy, and an importance correction corrects for
  that factor.
- Where the loss does not use the engine's logprobs, only the metrics that compare them with the trainer's are wrong: a warning.

## How to fix
Set `logprobs_mode: processed_logprobs` (`--logprobs-mode processed_logprobs`).

## When it can be wrong
The trainer computes logprobs at temperature 1 on purpose, in a way that its framework's configuration cannot express. ROLL's always
does, so that raw logprobs are the ones that match; JOB002 and JOB003 then say what its rollouts are sampled with.

## Seen in
PipelineRL's move to vLLM V1, vllm-project/vime#64, huggingface/trl#4159, verl-project/verl#4162
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job

PENALTIES = ("rollout.min_p", "rollout.repetition_penalty", "rollout.presence_penalty", "rollout.frequency_penalty")
LOOKED_AT = ("engine.logprobs", "rollout.temperature", "rollout.top_p", "rollout.top_k", *PENALTIES)


@rule(
    "JOB001",
    "raw-logprobs",
    severity="error",
    on="job",
    when=lambda job: bool(job.flag("algorithm.uses_rollout_logprobs") or job.flag("rollout.logprobs")),
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved(*LOOKED_AT)
    if job.text("engine.logprobs") != "raw" or job.flag("trainer.plain_logprobs"):
        return
    temperature, trainer = job.number("rollout.temperature"), job.number("trainer.temperature")
    # JOB002 reports a trainer at temperature 1.
    if trainer == 1 and temperature not in (0, 1):
        return
    top_p, top_k = job.number("rollout.top_p"), job.number("rollout.top_k")
    is_active = {"temperature": temperature not in (None, 1), "top_p": (top_p or 1) < 1, "top_k": (top_k or 0) > 0}
    # With greedy sampling only penalties change logprobs.
    parameters = [f"rollout.{name}" for name, active in is_active.items() if active and temperature != 0]
    parameters += job.penalties if job.engine == "vllm" else []
    if parameters:
        processing = ", ".join(f"{name.removeprefix('rollout.')} {job.describe(name)}" for name in parameters)
        use = (
            "the loss uses them"
            if job.flag("algorithm.uses_rollout_logprobs")
            else "they are compared with the trainer's"
        )
        yield job.problem(
            f"the engine returns raw logprobs ({job['engine.logprobs'].place}), computed before {processing}, and {use}",
            at="engine.logprobs" if job["engine.logprobs"].leaf else parameters[0],
            hint="set logprobs_mode to processed_logprobs"
            if job.engine == "vllm"
            else "take SGLANG_RETURN_ORIGINAL_LOGPROB out",
            severity=None if job.flag("algorithm.uses_rollout_logprobs") else "warning",
        )
