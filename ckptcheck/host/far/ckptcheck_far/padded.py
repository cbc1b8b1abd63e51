"""Scores sequences in one batch, filled up on the right: what a trainer does that neither packs nor goes one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def padded(model: Any, sequences: Sequence[Sequence[int]], device: Any, temperature: float = 1.0) -> list[list[float]]:
    """Return the logprob of each token after the first, by one forward for all.

    model: a causal model of transformers. It is given token 0 for padding, an attention mask that leaves it out, and no position
    ids, which is what a collator gives it.
    """
    longest = max(map(len, sequences))
    tokens = torch.zeros(len(sequences), longest, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = torch.tensor(sequence)
        mask[row, : len(sequence)] = 1
    with torch.no_grad():
        logits = model(tokens.to(device), attention_mask=mask.to(device), use_cache=False).logits
        found = []
        for row, sequence in enumerate(sequences):  # a row at a time: float32 copies of large vocabularies are large
            scaled = logits[row, : len(sequence) - 1].float() / temperature
            targets = torch.tensor(sequence[1:], device=scaled.device)
            found.append(scaled.log_softmax(-1).gather(-1, targets[:, None]).squeeze(-1).tolist())
    return found
