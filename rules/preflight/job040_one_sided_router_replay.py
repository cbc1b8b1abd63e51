"""Router replay is on at one side only: the trainer's, or the engine's.

## What it checks
Router replay (R3) has two halves: the engine returns the experts that it chose for every token, and the trainer takes the same
ones. Either both are on, or neither. Replay of the trainer's own choices (R2) needs nothing from the engine.

## Why it matters
- The trainer replays, and the engine returns nothing: verl's Megatron and VeOmni engines look for `routed_experts` in the batch
  and stop at the first step; SkyRL asserts that both are on; ROLL finds no experts in its batch.
- The engine returns, and the trainer does not replay: the choices cost memory and transfer for every token and layer, and the gap
  between trainer and engine stays, although the author of the job believes that it is closed.
- verl refuses R2 together with an engine that returns its choices, ROLL refuses R2, and NeMo-RL replays only with vLLM,
  Megatron and no virtual pipeline.

## How to fix
- verl: `actor.megatron.router_replay.mode=R3` (`actor.veomni.…` with VeOmni) and `rollout.enable_rollout_routing_replay=True`.
- slime, miles: `--use-rollout-routing-replay`, which sets both halves.
- NeMo-RL: `policy.router_replay.enabled: true`, which sets both.
- ROLL: `router_replay.mode: R3` of `actor_train` and of `actor_infer`, with SGLang.
- prime-rl: `trainer.enable_router_replay`, and `--enable-return-routed-experts` where the server is started by hand.

## When it can be wrong
The job only records the returned experts, to look at their balance or to compare them offline.

## Seen in
verl-project/verl examples/router_replay, verl/trainer/ppo/ray_trainer.py ("Detected conflicting router replay configuration"),
alibaba/ROLL roll/configs/worker_config.py, NVIDIA-NeMo/RL nemo_rl/models/megatron/router_replay.py
(`validate_router_replay_config`), NovaSky-AI/SkyRL skyrl/train/utils/utils.py, PrimeIntellect-ai/prime-rl
`auto_setup_router_replay`
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.jobs.job import Job


@rule(
    "JOB040",
    "one-sided-router-replay",
    severity="error",
    on="job",
    when=lambda job: (
        job.text("trainer.router_replay") not in (None, "none") or job["engine.routed_experts"].status == "set"
    ),
)
def check(job: Job) -> Iterator[Problem]:
    job.require_resolved("trainer.router_replay", "engine.routed_experts", "engine.name", "trainer.backend")
    replays, returns = job.text("trainer.router_replay"), job.flag("engine.routed_experts")
    if replays == "rollout":
        if refusal := _refusal(job):
            yield job.problem(
                f"{job.framework} can replay the engine's experts ({job['trainer.router_replay'].place}) {refusal}",
                at="trainer.router_replay",
                hint="turn router replay off, or change that",
            )
        elif returns is False:
            yield job.problem(
                f"the trainer replays the engine's experts ({job['trainer.router_replay'].place}), and the engine does not return"
                f" them ({job['engine.routed_experts'].place}): the job stops at its start or at the first step",
                at="trainer.router_replay",
                hint="let the engine return them (enable_return_routed_experts, enable_rollout_routing_replay)",
            )
    elif returns and job.framework == "AReaL" and job.engine == "vllm":
        yield job.problem(
            f"the engine is {job.describe('engine.name')} and has to return the experts that it chose"
            f" ({job['engine.routed_experts'].place}): AReaL refuses that for other engines than SGLang",
            at="engine.routed_experts",
            hint="use SGLang, or set return_routed_experts to false",
        )
    elif replays == "recompute" and job.framework == "ROLL":
        yield job.problem(
            f"ROLL does not have router replay R2 ({job['trainer.router_replay'].place}) and stops",
            at="trainer.router_replay",
            hint="set the mode to R3 for actor_train and actor_infer, or to disable",
        )
    elif replays == "recompute" and returns and job.framework == "verl":
        yield job.problem(
            f"the trainer replays its own experts, R2 ({job['trainer.router_replay'].place}), and the engine returns its own"
            f" ({job['engine.routed_experts'].place}): verl refuses the two together",
            at="engine.routed_experts",
            hint="set the mode to R3, or enable_rollout_routing_replay to False",
        )
    elif returns and replays is not None:
        yield job.problem(
            f"the engine returns the experts that it chose ({job['engine.routed_experts'].place}), and the trainer does not replay"
            f" them ({job['trainer.router_replay'].place})",
            at="engine.routed_experts",
            severity="warning",
            hint="turn router replay on in the trainer too, or off in the engine",
        )


def _refusal(job: Job) -> str:
    """Return why the framework cannot replay in this job, "" where it can."""
    if job.framework != "NeMo-RL":
        return ""
    if job.engine not in ("", "vllm"):
        return f"only with vLLM, and the engine is {job.describe('engine.name')}: it stops"
    if job.text("trainer.backend") == "dtensor":
        return f"only with Megatron, and the trainer is {job.describe('trainer.backend')}: it stops"
    if (job.number("trainer.vpp") or 1) > 1:
        return f"without virtual pipelining, and the job has {job.describe('trainer.vpp')} parts a stage: it stops"
    return ""
