"""The trainer sends the same tensors in another number of bytes.

## What it checks
- Two syncs in a row that send the same names also send the same number of bytes.

## Why it matters
- The trainer now casts its export, so that the engine gets other roundings of the weights, or it cuts tensors. An engine
  that casts what it loads accepts both silently.

## How to fix
- Look for a cast on the way: an autocast around the export, a mixed-precision wrapper, a setting for the dtype of the
  transfer.

## When it can be wrong
- A job may begin to send quantized weights at a certain step on purpose.

## Seen in
verl's FSDP2: mixed precision is bfloat16 by default (`mixed_precision`), also for a model in float32
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.runs.history.history import History
from ckptcheck.text.formatting import count


@rule("HIS015", "resized-payload", severity="warning", on="history", when=lambda history: bool(history.pairs))
def check(history: History) -> Iterator[Problem]:
    for pair in history.pairs:
        before, after = pair.before, pair.after
        if before.trained or after.trained:
            continue  # HIS025 says what was sent
        if before.sent.keys() == after.sent.keys() and before.nbytes and after.nbytes and before.nbytes != after.nbytes:
            yield Problem(
                f"{history.label(pair.index)}: the trainer sent its {count(len(after.sent), 'tensor')} in {after.nbytes:,}"
                f" bytes, and in {before.nbytes:,} at {history.label(pair.before_index)}",
                hint="was the export cast to another dtype? look for an autocast or a mixed-precision setting around it",
                names=tuple(after.sent),
            )
