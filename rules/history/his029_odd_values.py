"""A tensor that is sent, or that the engine holds, has values that no training gives it.

## What it checks
At each look at a torch tensor, its least and its greatest value:
- neither is NaN or infinite;
- both are not zero, where the tensor was not zero at the look before, or as it was sent;
- the engine's are those that were sent, and not a half, the double or another power of two of them. What is sent is held against
  the look before, where the tensor has been steady for three looks.

One finding for all tensors of a side with the same values. What the engine holds is reported only where it was sent otherwise, and
where HIS008 cannot hold it against what was sent, byte for byte.

## Why it matters
- NaN and zeros make an engine answer with one token, and no update fails. A power of two is a scale that was applied twice:
  logprobs stay plausible, and belong to another policy.

## How to fix
- Sent: go back to a save from before the sync. `ckptcheck scan` on a save says which tensors are affected.
- Held: look for what the loader does with a tensor: a scale of a quantized format, a merge, a memory that was freed.

## When it can be wrong
- A job that zeroes or rescales a tensor on purpose, as a restart of dead experts does.

## Seen in
modelscope/ms-swift#3136 (NaN from some step on), huggingface/trl#5142 (weights loaded into memory that sleep mode had freed)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import History
from ckptcheck.text.formatting import count, join_truncated

SIDES = {"sent": "sent", "held": "held in the engine"}
AGAINST = {"sent": "those of the sync before", "held": "those that were sent"}


@rule(
    "HIS029",
    "odd-values",
    severity="error",
    on="history",
    when=lambda history: any(sync.coverage for sync in history.syncs),
)
def check(history: History) -> Iterator[Problem]:
    lasting: dict[tuple[str, str, str], list[int]] = {}
    names: dict[tuple[str, str, str], dict[str, None]] = {}
    for index, sync in enumerate(history.syncs):
        for place, word in sync.odd.items():
            side, _, name = place.partition("/")
            if (side == "held" and name in history.stored_as_sent) or name in getattr(sync, "altered", {}):
                continue  # HIS008 says it, or whatever says in words how a tensor differs
            key = (sync.run, side, word)
            if not lasting.setdefault(key, []) or lasting[key][-1] != index:
                lasting[key].append(index)
            names.setdefault(key, {})[name.partition("/")[2] if side == "held" else name] = None
    for key, indices in lasting.items():
        _, side, word = key
        what = f"{word} {AGAINST[side]}" if word.startswith("times") else f"that are {word}"
        yield Problem(
            f"{history.label(indices[0])}: {count(len(names[key]), 'tensor')} {SIDES[side]} with values {what}:"
            f" {join_truncated(names[key])}{history.describe_lasting(indices)}",
            key=next(iter(names[key])),
            hint="go back to a save from before it; ckptcheck scan says which tensors of a save are affected"
            if side == "sent"
            else "the trainer sent it otherwise: look at what the engine's loader does with it",
        )
