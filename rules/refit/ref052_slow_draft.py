"""The engine accepts fewer tokens of its draft model than it should.

## What it checks
- The engine decodes greedily with its draft model (`--switch draft=mtp` or `draft=DIR`), and the trial counts the tokens of a
  decode step: the acceptance length, 1 where no proposed token is accepted.
- The same engine, started cold from the same weights, gains at least a quarter more: an error, which the sync made.
- The trainer sends no tensor of the draft model (it is a checkpoint of its own, or layers for multi-token prediction that the
  trainer does not hold), and the engine decodes fewer tokens in a step than before the trainer's steps: at least a fifth of what
  it gained is lost, in a cold load of the same weights too. That is a warning: the policy has moved away from the draft model.

## Why it matters
- Speculative decoding returns right tokens whatever the draft model proposes. So nothing else shows that a sync broke the draft
  model: rollouts only become slow.
- The policy's weights and the draft model's may each be right, and still the tensors that they share (an embedding, a head, tensors
  repacked after each update) be wrong.
- A draft model proposes the tokens of the policy before training. Each step makes its proposals worse, until rollouts take as long
  as without it, or longer, because the engine computes the proposals for nothing.

## How to fix
- Check that the update reaches the tensors that the draft model shares with the policy.
- vLLM updates a draft model in a session of its own (`start_draft_weight_update`, since 0.28); SGLang by the selector of its
  update requests. A frozen draft model must not be processed again after the policy's update.
- Train the layers for multi-token prediction with the policy and send them too, or distil the draft model again now and then.
- Watch the engine's acceptance length in the job: vLLM's `vllm:spec_decode_num_accepted_tokens` and SGLang's `spec_accept_length`.

## When it can be wrong
- On a GPU two starts may choose other kernels, and greedy texts diverge at a tie. The rule allows a fifth of the gain for that.
- A frozen draft model may be intended, and the trial's step is larger than a job's: `--set perturb` with a small scale shows the
  effect of a job's step.

## Seen in
radixark/miles#1926 (acceptance 2.71, then 1.00, no error), sgl-project/sglang#34495, vllm-project/vllm-ascend#13209;
sgl-project/sglang#28257, SkyRL#2142 ("silently drafted with stale weights")
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.refit.draft import FEWEST_GAINED, KEPT_SHARE
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.text.formatting import join_truncated


@rule(
    "REF052",
    "slow-draft",
    severity="error",
    on="refit",
    when=lambda trace: any(each.after_sync for each in trace.acceptances),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    yield from _find_broken(trace)
    is_apart = trace.engine is not None and (bool(trace.untrained) or trace.engine.facts.get("draft") == "model")
    if is_apart and not trace.sent_draft:
        yield from _find_outdated(trace)


def _find_broken(trace: RefitTrace) -> Iterator[Problem]:
    for each in trace.acceptances:
        gained, possible = each.engine - 1, each.cold - 1
        if each.after_sync and possible >= FEWEST_GAINED and gained < KEPT_SHARE * possible:
            yield Problem(
                f"after sync {each.after_sync} the engine decodes {each.engine:.2f} tokens a step with its draft model, and a cold"
                f" load of the same weights {each.cold:.2f}: the sync left the draft model with something else than it needs",
                hint="update the draft model in a session of its own, and what it shares with the policy in the policy's",
            )
            return


def _find_outdated(trace: RefitTrace) -> Iterator[Problem]:
    first = trace.acceptances[0].cold
    for each in trace.acceptances:
        step = trace.syncs[each.after_sync - 1].step if each.after_sync else 0
        if step and first - 1 >= FEWEST_GAINED and each.cold - 1 < KEPT_SHARE * (first - 1):
            which = f" ({join_truncated(trace.untrained)})" if trace.untrained else ""
            yield Problem(
                f"after {step} step{'s' if step > 1 else ''} the engine decodes {each.cold:.2f} tokens a step with its draft model,"
                f" and {first:.2f} before: the trainer sends no tensor of it{which}, so it proposes what the policy said before",
                hint="train and send the draft model too, or distil it again",
                severity="warning",
            )
            return
