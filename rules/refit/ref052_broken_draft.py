"""A sync made the engine accept fewer tokens of its draft model than a cold load does.

## What it checks
- The engine decodes greedily with its draft model (`--switch draft=mtp` or `draft=DIR`), and the trial counts the tokens of a
  decode step: the acceptance length, 1 where no proposed token is accepted.
- The same engine, started cold from the same weights, gains at least a quarter more.

## Why it matters
- Speculative decoding returns right tokens whatever the draft model proposes. So nothing else shows that a sync broke the draft
  model: rollouts only become slow.
- The policy's weights and the draft model's may each be right, and what they share (an embedding, a head, tensors repacked after
  each update) not.

## How to fix
- See whether the update reaches what the draft model shares with the policy.
- vLLM updates a draft model in a session of its own (`start_draft_weight_update`, since 0.28); SGLang by the selector of its update
  requests. A frozen draft model must not be processed again after the policy's update.

## When it can be wrong
- On a GPU two starts may choose other kernels, and greedy text parts at a tie. The rule leaves a fifth of the gain to that.

## Seen in
radixark/miles#1926 (acceptance 2.71, then 1.00, no error), sgl-project/sglang#34495, vllm-project/vllm-ascend#13209
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.refit.draft import FEWEST_GAINED, KEPT_SHARE
from ckptcheck.live.refit.trace import RefitTrace


@rule(
    "REF052",
    "broken-draft",
    severity="error",
    on="refit",
    when=lambda trace: any(each.after_sync for each in trace.acceptances),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    for each in trace.acceptances:
        gained, possible = each.engine - 1, each.cold - 1
        if each.after_sync and possible >= FEWEST_GAINED and gained < KEPT_SHARE * possible:
            yield Problem(
                f"after sync {each.after_sync} the engine decodes {each.engine:.2f} tokens a step with its draft model, and a cold"
                f" load of the same weights {each.cold:.2f}: the sync left the draft model with something else than it needs",
                hint="update the draft model in a session of its own, and what it shares with the policy in the policy's",
            )
            return
