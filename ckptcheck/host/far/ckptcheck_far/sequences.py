"""Token sequences as they are asked about, looked at before ranks begin to talk to each other about them."""

from __future__ import annotations

from collections.abc import Sequence


def checked(sequences: Sequence[Sequence[int]], vocabulary: int, least: int = 1) -> None:
    """Raise ValueError for a sequence that is too short, and for a token that the model does not have."""
    for number, sequence in enumerate(sequences):
        if len(sequence) < least:
            raise ValueError(f"sequence {number} has {len(sequence)} tokens, and at least {least} are needed")
        if odd := [token for token in sequence if not 0 <= token < vocabulary]:
            raise ValueError(f"sequence {number} holds the token {odd[0]}, and the vocabulary ends at {vocabulary}")
