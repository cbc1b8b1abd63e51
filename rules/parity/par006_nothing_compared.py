"""No token could be compared, or none with the training run's own logprobs.

## What it checks
- There are tokens under the response mask, and both sides have finite logprobs for some of them.
- A file of the engine alone, as slime and PipelineRL save them, waits for its trainer: an info.
- The training run wrote the trainer's logprobs itself. Frameworks that skip the forward pass write zeros, or nothing, in their
  place; the conversion recognises these and leaves them out, and the rule names the reason. It is an info if a trainer scored the
  file later.

## Why it matters
- A comparison of nothing passes every threshold. Frameworks report 0 for it, which reads as perfect.
- Zeros compare like numbers: against them the gap is the entropy of the model, and a curve of such a run shows nothing about the
  engine. The run itself has no logprobs of the weights that sampled.

## How to fix
- Score the file with a trainer (`ckptcheck parity score`), or find out why the mask is empty.
- Or let the job compute the logprobs: in NeMo-RL turn `force_on_policy_ratio` off or set `seq_logprob_error_threshold`, in ROLL
  turn `enable_old_logprobs_recompute` on, in SkyRL turn `off_policy_correction` on.

## When it can be wrong
- One compared token is enough to keep the rule quiet, even if nearly everything was masked. The report's first line says how
  many tokens were compared.

## Seen in
radixark/miles: an empty comparison passes its logprob comparator; NeMo-RL reports 0.0 as seq_mult_prob_error of nothing.
NVIDIA-NeMo/RL grpo.py at 7ea279a (`prev_logprobs` are zeros), alibaba/ROLL rlvr_pipeline.py at 8eb27cc (`old_log_probs` are zeros),
NovaSky-AI/SkyRL trainer.py at a956457 (`action_log_probs` are None)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.checkpoint.document import clip
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count


@rule("PAR006", "nothing-compared", severity="error", on="rollouts")
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    rollouts = evidence.rollouts
    unscored = rollouts.metadata.unscored
    missing = [side for side in ("engine", "trainer") if f"{side}_logprobs" not in rollouts]
    if not rollouts.sequence_count:
        yield Problem("there is no sequence, so nothing was compared", hint="see what the conversion left out")
    elif missing:
        hint = "ckptcheck parity score FILE adds them" if missing == ["trainer"] else "convert a file that has them"
        reasons = [unscored[side] for side in missing if side in unscored]
        yield Problem(
            f"there are no logprobs of the {' and none of the '.join(missing)}, so nothing was compared"
            + (f": {'; '.join(map(clip, reasons))}" if reasons else ""),
            hint=hint,
            severity="info" if missing == ["trainer"] and not reasons else None,
        )
    elif evidence.metrics_or_none is None:
        tokens = sum(int(block.mask.sum()) for block in rollouts.blocks())
        reason = (
            f"none of {count(tokens, 'pair')} of logprobs is finite"
            if tokens
            else "no token is under the response mask"
        )
        yield Problem(f"{reason}, so nothing was compared", hint="look at the mask and at the lengths of the responses")
    if "trainer" in unscored and "trainer" not in missing:
        yield Problem(
            f"the training run wrote no logprobs of its trainer: {clip(unscored['trainer'], 200)}; those in this file were"
            " computed later",
            hint="do not compare them with the run's own curves: these came from other logprobs",
            severity="info",
        )
