"""Rollouts are sampled with a penalty or with min-p, and the trainer computes logprobs without it.

## What it checks
Repetition, presence and frequency penalty and min-p of the rollouts are off: 1, 0, 0 and 0.

## Why it matters
- A penalty changes the logits of tokens that occurred before, so the distribution that is sampled from depends on the text. No
  trainer that ckptcheck reads does the same to its own logits.
- With processed logprobs (and with SGLang's of either kind) the engine reports the changed distribution: every ratio is off, most
  for repeated tokens. With raw logprobs of vLLM the ratio hides that the tokens come from another distribution (JOB001).

## How to fix
Sample without penalties in training; reward against repetitions instead, or keep penalties for evaluation.

## When it can be wrong
You accept the bias, or your trainer applies the same penalty in a way that its framework's configuration cannot express.

## Seen in
PipelineRL's move to vLLM V1 (processed logprobs are those after temperature, penalties and top-k/top-p), vllm-project/vllm
`Sampler.forward`, ROLL's and verl's `repetition_penalty`
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job

NAMES = ("rollout.repetition_penalty", "rollout.presence_penalty", "rollout.frequency_penalty", "rollout.min_p")


@rule(
    "JOB026",
    "unmatched-penalty",
    severity="warning",
    on="job",
    when=lambda job: any(job[name].status != "unknown" for name in NAMES),
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved(*NAMES)
    if penalties := job.penalties:
        active = ", ".join(f"{name.removeprefix('rollout.')} {job.describe(name)}" for name in penalties)
        yield job.problem(
            f"rollouts are sampled with {active}, and {job.framework}'s trainer computes logprobs without",
            at=penalties[0],
            hint="sample without penalties in training",
        )
