"""The trainer sent a weight that no tensor of the engine is built from.

## What it checks
- For every weight that the trainer sends, the engine has a tensor that is built from it. The rule matches names
  (fused projections and experts included) and then bytes.
- If most names match nothing, the engine has its own naming, and the rule is skipped.

## Why it matters
- Engines that ignore unknown names report success. A head that was sent under another name, or layers with another
  prefix, are then never updated. REF001 reports the unwritten tensors; this rule reports what was sent for them.

## How to fix
- Send the weight under the name that the engine's loader expects, or do not send it.

## When it can be wrong
- Engines leave out some weights by design: the head of a tied model, and layers of multi-token prediction without a
  draft model.

## Seen in
SGLang 0.5.23 (Qwen3-MoE drops unknown names without a log line); vLLM 0.32 raises ValueError, which REF009 reports
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.weight_names import unmatched_weights
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "REF019",
    "unmatched-weight",
    severity="warning",
    on="refit",
    when=lambda trace: any(sync.manifest for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    names = unmatched_weights(trace)
    if names is None:
        raise Skip("the engine names its tensors in another way than checkpoints do")
    if names:
        yield Problem(
            f"the trainer sent {count(len(names), 'weight')} that no tensor of the engine is built from:"
            f" {join_truncated(names)}",
            key=names[0],
            hint="send it under a name that the engine's loader knows, or not at all",
            names=tuple(names),
        )
