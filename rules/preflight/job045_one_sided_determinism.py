"""Only one side computes deterministically.

## What it checks
Trainer and engine are both deterministic (batch-invariant), or neither is.

## Why it matters
- Equal logprobs on both sides, and repeatable runs, need both. A deterministic engine is slower (SGLang: by a third), and gains
  nothing if the trainer's kernels still differ from run to run.
- A deterministic trainer with an engine that samples anew gives two runs that differ from the first step on. That is useful only to
  debug the trainer alone, on recorded rollouts: an info.

## How to fix
- slime, miles: `--deterministic-mode` and `--sglang-enable-deterministic-inference`, with `NVTE_ALLOW_NONDETERMINISTIC_ALGO=0`.
- verl: `full_determinism: true` of the actor's engine (`actor.fsdp_config`) and of `rollout`.
- vLLM: `VLLM_BATCH_INVARIANT=1`.

## When it can be wrong
You may want to repeat one side on its own. The rule is skipped if no setting says what the trainer does.

## Seen in
slime docs/en/advanced/reproducibility.md, miles examples/infra_features/true_on_policy, verl-project/verl
verl/workers/engine/utils.py (`enable_full_determinism`)
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.jobs.job import Job


@rule(
    "JOB045",
    "one-sided-determinism",
    severity="warning",
    on="job",
    when=lambda job: (
        job.updates_weights and bool(job.flag("trainer.deterministic") or job.flag("engine.deterministic"))
    ),
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved("trainer.deterministic", "engine.deterministic")
    trainer, engine = job.flag("trainer.deterministic"), job.flag("engine.deterministic")
    if trainer is None:
        raise Skip(f"no setting says whether {job.framework}'s trainer computes deterministically")
    if engine and not trainer:
        yield job.problem(
            f"the engine computes deterministically ({job['engine.deterministic'].place}), the trainer does not"
            f" ({job['trainer.deterministic'].place}): its logprobs differ all the same",
            at="engine.deterministic",
            hint="do it on both sides or on neither",
        )
    elif trainer and not engine and job.engine:
        yield job.problem(
            f"the trainer computes deterministically ({job['trainer.deterministic'].place}), the engine does not"
            f"{_place(job)}: rollouts differ from run to run",
            at="trainer.deterministic",
            severity="info",
            hint="make the engine deterministic too, to repeat a run or to compare logprobs",
        )


def _place(job: Job) -> str:
    """Return the place of the engine's setting in brackets, "" where no one wrote it."""
    place = job["engine.deterministic"].place
    return f" ({place})" if place else ""
