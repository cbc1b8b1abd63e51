"""A sequence is longer than the engine's max_model_len.

## What it checks
Where max_model_len is recorded, no sequence (prompt plus response) has more tokens.

## Why it matters
An engine that goes past its limit runs beyond the positions that it was set up for: rotary tables, cache blocks, the trainer's
own sequence length. The last tokens of such a sequence are wrong, or training cuts them off.

## How to fix
Correct the limit of the engine, and check whether it counts the prompt.

## When it can be wrong
- A trajectory that is put together from several requests, with a context that was cut or summarised in between, may be longer
  than any one request. Record its requests one by one.
- `max_model_len` may be the trainer's, or that of another engine of the fleet: correct it in the metadata.
- The rule does not find responses that end too early.

## Seen in
NeMo-RL tools/model_diagnostics/1.max_model_len_respected.py exists because of it
"""

from collections.abc import Iterator

from ckptcheck import Problem, rule
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count


@rule(
    "PAR013",
    "overlong-sequence",
    severity="error",
    on="rollouts",
    when=lambda evidence: evidence.rollouts.metadata.max_model_len is not None,
)
def check(evidence: RolloutEvidence) -> Iterator[Problem]:
    import numpy as np

    if (most := evidence.rollouts.metadata.max_model_len) is None:
        return
    lengths = np.diff(evidence.rollouts.starts)
    longer = np.flatnonzero(lengths > most)
    if len(longer):
        worst = int(longer[lengths[longer].argmax()])
        text = (
            f"{count(len(longer), 'sequence exceeds', 'sequences exceed')} max_model_len ({most:,} tokens);"
            f" this one has {int(lengths[worst]):,}"
        )
        yield Problem(text, key=f"sequence {worst}", hint="check whether the engine's limit counts the prompt")
