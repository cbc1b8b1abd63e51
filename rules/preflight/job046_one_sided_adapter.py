"""The trainer sends an adapter that the engine does not serve, or the reverse.

## What it checks
Where the trainer trains adapters (LoRA) and sends them as such, the engine serves adapters. Where the trainer has none, or
merges them into the weights that it sends, the engine does not.

## Why it matters
- An adapter that the engine does not serve has no effect there: all rollouts come from the base model, and training learns
  nothing from what it does.
- An engine that serves adapters wraps its layers. Merged or plain weights then either find no parameter of their name, or come
  on top of an adapter that is already there, and count twice.

## How to fix
- verl: `model.lora_rank` without `enable_lora` in `engine_kwargs`; verl sets it itself, unless `model.lora.merge` is on.
- ROLL: the same `lora_target` and `lora_rank` for `actor_train` and `actor_infer`.
- miles: remove `--lora-train-only`.
- prime-rl: `trainer.model.lora`, which turns vLLM's adapters on.

## When it can be wrong
A job that serves other adapters on purpose, or that keeps its rollouts on the base model to debug the trainer.

## Seen in
radixark/miles miles/utils/arguments.py (`--lora-train-only`), alibaba/ROLL roll/distributed/strategy/vllm_strategy.py,
verl-project/verl verl/workers/rollout/vllm_rollout/vllm_async_server.py (`lora_as_adapter`)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job


@rule(
    "JOB046",
    "one-sided-adapter",
    severity="warning",
    on="job",
    when=lambda job: (
        job.updates_weights
        and bool(job.flag("trainer.lora") or (job["engine.lora"].status == "set" and job.flag("engine.lora")))
    ),
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved("trainer.lora", "engine.lora", "update.merges_lora")
    trainer, engine, merges = job.flag("trainer.lora"), job.flag("engine.lora"), job.flag("update.merges_lora")
    if engine and trainer is False:
        yield job.problem(
            f"the engine serves adapters ({job['engine.lora'].place}), and the trainer trains all weights"
            f" ({job['trainer.lora'].place})",
            at="engine.lora",
            hint="turn adapters off in the engine, or train one",
        )
    elif engine and trainer and merges and job["engine.lora"].status == "set":
        yield job.problem(
            f"the engine serves adapters ({job['engine.lora'].place}), and the trainer merges its own into the weights that"
            f" it sends ({job['update.merges_lora'].place})",
            at="engine.lora",
            hint="send the adapter, or turn adapters off in the engine",
        )
    elif trainer and engine is False and merges is False:
        yield job.problem(
            f"the trainer trains an adapter ({job['trainer.lora'].place}), and the engine serves none"
            f" ({job['engine.lora'].place}): rollouts come from the base model, whatever is learned",
            at="engine.lora" if job["engine.lora"].leaf else "trainer.lora",
            hint="let the engine serve the adapter, or merge it into the weights that are sent",
        )
