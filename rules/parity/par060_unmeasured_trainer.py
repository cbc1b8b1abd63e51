"""The training run wrote no logprobs of its trainer, because it computed none before the step.

## What it checks
The source of the rollouts has the trainer's logprobs. Frameworks that skip the forward pass write zeros, or nothing, in their
place; the conversion recognises these and leaves them out, and the rule names the reason.

## Why it matters
Zeros compare like numbers: against them the gap is the entropy of the model, and a curve that somebody computes from such a file
shows nothing about the engine. The run itself has no logprobs of the weights that sampled.

## How to fix
Score the file with a trainer (`ckptcheck parity score`). Or let the job compute the logprobs: in NeMo-RL turn
`force_on_policy_ratio` off or set `seq_logprob_error_threshold`, in ROLL turn `enable_old_logprobs_recompute` on, in SkyRL
turn `off_policy_correction` on.

## When it can be wrong
The setting is a legitimate one, and saves a forward pass: the rule says what the file lacks, not that the job is wrong.

## Seen in
NVIDIA-NeMo/RL grpo.py at 7ea279a (`prev_logprobs` are zeros), alibaba/ROLL rlvr_pipeline.py at 8eb27cc (`old_log_probs` are zeros),
NovaSky-AI/SkyRL trainer.py at a956457 (`action_log_probs` are None)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence


@rule("PAR060", "unmeasured-trainer", severity="info", on="rollouts", when=lambda evidence: evidence.is_well_formed)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    rollouts = evidence.rollouts
    reason = rollouts.metadata.unscored.get("trainer")
    if reason is None:
        return
    is_scored = "trainer_logprobs" in rollouts
    text = f"the training run wrote no logprobs of its trainer: {clip(reason, 200)}"
    if is_scored:
        yield Problem(
            f"{text}; those in this file were computed later", hint="compare nothing with the run's own curves"
        )
    else:
        yield Problem(text, hint="ckptcheck parity score FILE computes them")
