"""A tensor is sent with values that no training gives it.

## What it checks
At each look at a torch tensor that is sent, its least and its greatest value:
- neither is NaN or infinite;
- both are not zero, where the tensor was not zero at the look before;
- they are not a half, the double or another power of two of those at the look before, where the tensor has been steady for three.

One finding for all tensors with the same fault. A tensor that the trainer's own parameter does not explain is left to HIS025, NaN
after a loss that was no finite number to HIS022, and what the engine makes of a sound tensor to HIS008.

## Why it matters
- NaN and zeros make an engine answer with one token, and no update fails. A power of two is a scale that was applied twice:
  logprobs stay plausible, and belong to another policy.

## How to fix
- Go back to a save from before the sync. `ckptcheck scan` on a save says which tensors are affected.

## When it can be wrong
- A job that zeroes or rescales a tensor on purpose, as a restart of dead experts does.

## Seen in
modelscope/ms-swift#3136 (NaN from some step on), verl-project/verl#637 (no check of the weights that vLLM is sent)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import History
from ckptcheck.text.formatting import count, join_truncated


@rule(
    "HIS029",
    "odd-values",
    severity="error",
    on="history",
    when=lambda history: any(sync.coverage for sync in history.syncs),
)
def check(history: History) -> Iterator[Problem]:
    lasting: dict[tuple[str, str], dict[int, None]] = {}
    names: dict[tuple[str, str], dict[str, None]] = {}
    spoilt: set[str] = set()
    for index, sync in enumerate(history.syncs):
        if sync.not_finite:
            spoilt.add(sync.run)
        for name, word in sync.odd.items():
            if name in (sync.trained or ()) or (word == "NaN" and sync.run in spoilt):
                continue
            lasting.setdefault((sync.run, word), {})[index] = None
            names.setdefault((sync.run, word), {})[name] = None
    for key, indices in lasting.items():
        what = f"{key[1]} against the sync before" if key[1].startswith("multiplied") else f"that are {key[1]}"
        yield Problem(
            f"{history.label(next(iter(indices)))}: {count(len(names[key]), 'tensor')} sent with values {what}:"
            f" {join_truncated(names[key])}{history.describe_lasting([*indices])}",
            key=next(iter(names[key])),
            hint="go back to a save from before it; ckptcheck scan says which tensors of a save are affected",
        )
