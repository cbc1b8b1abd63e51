"""The policy has moved away from a draft model that no sync updates.

## What it checks
- The trainer sends no tensor of the draft model: it is a checkpoint of its own, or layers for multi-token prediction that the
  trainer does not hold.
- The engine decodes fewer tokens in a step than before the trainer's steps: at least a fifth of what it gained is lost, in a cold
  load of the same weights too.

## Why it matters
- A draft model proposes what the policy would have said before training. Each step makes it worse, until rollouts take as long as
  without it, or longer, since its proposals are computed for nothing.

## How to fix
- Train the layers for multi-token prediction with the policy and send them too, or distil the draft model again now and then.
- Watch the engine's acceptance length in the job: vLLM's `vllm:spec_decode_num_accepted_tokens` and SGLang's `spec_accept_length`.

## When it can be wrong
- A frozen draft model is a choice, and the trial's step is larger than one of a job: `--perturb` with a small scale shows what a
  job would see.

## Seen in
radixark/miles#1926, sgl-project/sglang#28257, SkyRL#2142 ("silently drafted with stale weights")
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.live.refit.draft import FEWEST_GAINED, KEPT_SHARE
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.text.formatting import join_truncated


@rule(
    "REF053",
    "outdated-draft",
    severity="warning",
    on="refit",
    when=lambda trace: (
        any(each.after_sync > 1 for each in trace.acceptances)
        and not trace.sent_draft
        and trace.engine is not None
        and (bool(trace.untrained) or trace.engine.facts.get("draft") == "model")
    ),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    first = trace.acceptances[0].cold
    for each in trace.acceptances:
        step = trace.syncs[each.after_sync - 1].step if each.after_sync else 0
        if step and first - 1 >= FEWEST_GAINED and each.cold - 1 < KEPT_SHARE * (first - 1):
            which = f" ({join_truncated(trace.untrained)})" if trace.untrained else ""
            yield Problem(
                f"after {step} step{'s' if step > 1 else ''} the engine decodes {each.cold:.2f} tokens a step with its draft model,"
                f" and {first:.2f} before: the trainer sends no tensor of it{which}, so it proposes what the policy said before",
                hint="train and send the draft model too, or distil it again",
            )
            return
