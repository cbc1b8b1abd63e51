"""A token id is none of the model's.

## What it checks
That every id is at least 0 and, where the number of embedding rows is known, below it.

## Why it matters
The trainer reads outside of its embedding: an assertion on a GPU, another token's row elsewhere. Ids of -1 and -100 are
padding and labels that leaked.

## How to fix
Strip padding before the file is written, and compare the tokenizers of both sides.

## When it can be wrong
Engines give images and sounds ids beyond the vocabulary or below 0, and a record of the prompt may hold those: the
trainer puts vectors in their place, so nothing is read out of bounds. Write the placeholder's own id. Where the file
does not say how many rows the embedding has, only ids below 0 or from 2^31 on are seen.

## Seen in
collators that pad with -100
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.parity.judged import Judged
from ckptcheck.parity.judging import seen
from ckptcheck.phrase import count


@rule("PAR008", "token-beyond-vocabulary", severity="error", on="rollouts", when=lambda judged: judged.sound)
def check(judged: Judged) -> Iterator[Problem]:
    rows = judged.rollouts.metadata.vocabulary
    most = 2**31 if rows is None else rows
    if found := seen(judged, "tokens", lambda ids: (ids < 0) | (ids >= most), masked=False):
        limit = f", and the model has {rows:,}" if rows is not None and found.value >= 0 else ""
        text = f"{count(found.number, 'token')} in {count(found.sequences, 'sequence')}: the first has the id "
        text += f"{found.value:.0f}{limit}"
        yield Problem(
            text, key=f"tokens, {found.place}", hint="strip padding, and compare the tokenizers of both sides"
        )
