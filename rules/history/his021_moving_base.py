"""The base moves under an adapter that is sent beside it.

## What it checks
- The record has tensors of an adapter (LoRA). The weights of the modules that it adapts, where the trainer sends them too, keep
  their values from sync to sync.
- Weights without an adapter of their own may move: embeddings and norms can be trained beside it.

## Why it matters
- A base that moves has the adapter merged into it. The engine adds the adapter to it once more, and computes with it twice.
- A base that is merged and restored in bfloat16 at every sync is rounded each time, and drifts.

## How to fix
- Send the base as it was loaded, once, and then the adapter. Megatron-Bridge merges on export unless it is given
  `merge_adapter_weights=False`. Or merge, and send no adapter.

## When it can be wrong
- A job that merges its adapter from time to time and begins a new one (ReLoRA).

## Seen in
radixark/miles#1087, radixark/miles#1091 (the base is exported with the adapter merged; the fix was reverted a day later)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.history.adapted_modules import list_adapted_weights
from ckptcheck.runs.history.history import History
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "HIS021",
    "moving-base",
    severity="error",
    on="history",
    when=lambda history: any(history.adapted_modules(pair.after.run) for pair in history.pairs),
)
def check(history: History) -> Iterator[Problem]:
    moved: dict[str, dict[int, list[str]]] = {}
    for pair in history.pairs:
        if names := list_adapted_weights(pair.sent_changed, history.adapted_modules(pair.after.run)):
            moved.setdefault(pair.after.run, {})[pair.index] = names
    for syncs in moved.values():
        names = sorted({name for each in syncs.values() for name in each})
        indices = sorted(syncs)
        yield Problem(
            f"{history.label(indices[0])}: {count(len(names), 'weight')} of the base moved although the adapter that is trained on"
            f" {'it' if len(names) == 1 else 'them'} is sent too: {join_truncated(names)}{history.describe_lasting(indices)}",
            key=names[0],
            hint="send the base without the adapter merged into it (merge_adapter_weights=False), or merge and send no adapter",
        )
