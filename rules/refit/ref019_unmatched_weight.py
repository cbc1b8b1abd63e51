"""A weight was sent, and nothing of the engine is made of it.

## What it checks
Every weight that the trainer sends is one that some tensor of the engine is made of, by name (fused projections and experts
included) or by its bytes. Where most names match nothing the engine has names of its own, and the rule is skipped.

## Why it matters
Engines that pass over unknown names say success. A head that was sent under another name, or the layers of a prefix, are then never
updated; those are unwritten (REF001), and this says what was sent for them.

## How to fix
Send it under the name that the engine's loader knows, or not at all.

## When it can be wrong
Weights that an engine leaves out by design: the head of a tied model, layers of multi-token prediction without a draft model.

## Seen in
SGLang 0.5.23 (Qwen3-MoE drops unknown names without a log line); vLLM 0.32 raises ValueError, which REF009 tells
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.phrase import count, few
from ckptcheck.refit.names import unmatched
from ckptcheck.refit.trace import RefitTrace


@rule(
    "REF019",
    "unmatched-weight",
    severity="warning",
    on="refit",
    when=lambda trace: any(sync.manifest for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    names = unmatched(trace)
    if names is None:
        raise Skip("the engine names its tensors in another way than checkpoints do")
    if names:
        yield Problem(
            f"{count(len(names), 'weight was', 'weights were')} sent, and no tensor of the engine is made of"
            f" {'it' if len(names) == 1 else 'them'}: {few(names)}",
            key=names[0],
            hint="send it under a name that the engine's loader knows, or not at all",
        )
