"""A token id does not exist in the model's vocabulary.

## What it checks
Every id is at least 0 and, where the number of embedding rows is known, below it.

## Why it matters
The trainer reads outside of its embedding: that fails an assertion on a GPU, and elsewhere reads another token's row. Ids of -1
and -100 are padding and labels that leaked.

## How to fix
Strip padding before you write the file, and compare the tokenizers of both sides.

## When it can be wrong
- Engines give images and sounds ids beyond the vocabulary or below 0, and a recorded prompt may hold those. The trainer replaces
  them with other vectors, so it reads nothing out of bounds. Write the placeholder's own id.
- Where the file does not say how many rows the embedding has, the rule finds only ids below 0 or from 2^31 on.

## Seen in
lucidrains/audiolm-pytorch#18 and meta-llama/llama#481 (sequences padded with -1)
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.rollout_queries import find_tokens
from ckptcheck.text.formatting import count


@rule("PAR008", "token-beyond-vocabulary", severity="error", on="rollouts")
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    rows = evidence.rollouts.metadata.vocabulary
    most = 2**31 if rows is None else rows
    if matches := find_tokens(evidence, "tokens", lambda ids: (ids < 0) | (ids >= most), masked=False):
        limit = f", and the model has {rows:,} embedding rows" if rows is not None and matches.value >= 0 else ""
        text = f"{count(matches.number, 'token')} in {count(matches.sequences, 'sequence')} "
        text += f"{'is' if matches.number == 1 else 'are'} not in the vocabulary; the first has id "
        text += f"{matches.value:.0f}{limit}"
        yield Problem(
            text, key=f"tokens, {matches.place}", hint="strip padding, and compare the tokenizers of both sides"
        )
