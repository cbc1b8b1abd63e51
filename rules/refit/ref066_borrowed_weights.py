"""The engine's weights changed with the trainer's step, before anything was sent.

## What it checks
- After the trainer's step, and before the sync, the engine holds what the last sync brought. The rule compares the
  digests of its tensors with those after that sync.
- A tensor that already is what the next sync has to bring lies in the trainer's memory. Another parameter that changed
  was written by somebody else.
- With `--set sleep-level=2` the engine has dropped its weights, and the rule is skipped. What changes in a sleep otherwise
  belongs to REF018.

## Why it matters
- An update by CUDA IPC lends the engine the trainer's own memory. An engine that keeps a lent tensor without a copy
  samples with weights that change under it: rollouts of one version are computed with parts of the next one, half-way
  through an optimizer step, and every check after a sync is clean.

## How to fix
- Copy in the loader: `param.data.copy_(weight)`, never `param.data = weight`. Until then the trainer has to send copies.

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
