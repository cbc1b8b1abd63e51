"""The engine's weights changed with the trainer's step, before the sync.

## What it checks
- After the trainer's step, and before the sync, the engine holds what the last sync brought. The rule compares the
  digests of its tensors with those after that sync.
- A tensor that already holds the values of the next sync lies in the trainer's memory. If another parameter changed,
  something else wrote to it.
- With `--set sleep-level=2` the engine has dropped its weights, and the rule is skipped. REF018 reports what a sleep at
  level 1 changes.

## Why it matters
- An update by CUDA IPC lends the engine the trainer's own memory. If the engine keeps a lent tensor without a copy, its
  weights change during an optimizer step: it computes rollouts of one version with parts of the next, and every check
  after a sync is clean.

## How to fix
- Copy in the loader: `param.data.copy_(weight)`, not `param.data = weight`. If you cannot, let the trainer send copies.

## When it can be wrong
- A job may share the weights of trainer and engine on purpose, and pause the engine while it steps.

## Seen in
Loaders that assign what they are given (`param.data = loaded_weight`), with the IPC transports of vLLM 0.32 and SGLang 0.5.23
"""

from collections.abc import Iterator

from ckptcheck import Problem, Skip, rule
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.refit.weight_names import describe_origin
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "REF066",
    "borrowed-weights",
    severity="error",
    on="refit",
    when=lambda trace: any(sync.step for sync in trace.syncs) and any(sync.manifest for sync in trace.syncs),
)
def check(trace: RefitTrace) -> Iterator[Problem]:
    if not trace.unsynced_changes:
        raise Skip("the engine had dropped its weights before the sync")
    for step, changes in trace.unsynced_changes.items():
        for follows, description, hint in (
            (
                True,
                "to what the sync has yet to bring: it computes with the trainer's own memory",
                "copy in the engine's loader",
            ),
            (False, "although nothing was sent", "look for another process that writes to the engine"),
        ):
            if names := sorted({name for (_, name), change in changes.items() if change is follows}):
                yield Problem(
                    f"{count(len(names), 'tensor')} of the engine changed with step {step}, {description}:"
                    f" {join_truncated(names)}{describe_origin(trace, names)}",
                    key=names[0],
                    hint=hint,
                    names=tuple(names),
                )
