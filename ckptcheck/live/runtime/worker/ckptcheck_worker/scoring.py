"""Checks token sequences, and scores several in one padded batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def check_sequences(sequences: Sequence[Sequence[int]], vocabulary: int, min_length: int = 1) -> None:
    """Raise ValueError for a sequence that is too short, and for a token outside the vocabulary.

    Call it before ranks communicate: an error on one rank would leave the others waiting in a collective.
    """
    for number, sequence in enumerate(sequences):
        if len(sequence) < min_length:
            raise ValueError(f"sequence {number} has {len(sequence)} tokens, and at least {min_length} are needed")
        if invalid := [token for token in sequence if not 0 <= token < vocabulary]:
            raise ValueError(f"sequence {number} holds the token {invalid[0]}, and the vocabulary ends at {vocabulary}")


def score_batched(
    model: Any, sequences: Sequence[Sequence[int]], device: Any, temperature: float = 1.0
) -> list[list[float]]:
    """Return the logprob of each token after the first, from one forward over all sequences, padded on the right.

    model: a causal model of transformers. It gets token 0 as padding, an attention mask that excludes the padding, and no position
    ids, as a collator would pass them.
    """
    longest = max(map(len, sequences))
    tokens = torch.zeros(len(sequences), longest, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = torch.tensor(sequence)
        mask[row, : len(sequence)] = 1
    with torch.no_grad():
        logits = model(tokens.to(device), attention_mask=mask.to(device), use_cache=False).logits
        logprobs = []
        # one row at a time: a float32 copy of all rows is large for large vocabularies
        for row, sequence in enumerate(sequences):
            scaled = logits[row, : len(sequence) - 1].float() / temperature
            targets = torch.tensor(sequence[1:], device=scaled.device)
            logprobs.append(scaled.log_softmax(-1).gather(-1, targets[:, None]).squeeze(-1).tolist())
    return logprobs
