"""Adds logprobs of the whole vocabulary to rollouts, for a few tokens only, because they are large; the exact KL needs them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ckptcheck.rollouts import Rollouts

if TYPE_CHECKING:
    from numpy.typing import NDArray


class FullVocabSource(Protocol):
    """An engine or a trainer that reports logprobs of the whole vocabulary."""

    def score_full_vocab(self, sequences: Sequence[Sequence[int]], folder: Path) -> Path:
        """Write the logprobs of the whole vocabulary after each token but the last, and return the file."""
        ...


def add_full_vocab_logprobs(
    rollouts: Rollouts, side: str, source: FullVocabSource, folder: Path, *, number: int = 0, temperature: float = 1.0
) -> Rollouts:
    """Add a side's logprobs (``engine`` or ``trainer``), float32 [positions, vocabulary].

    number: how many response tokens, from the first on; 0: those for which the other side has them.
    temperature: of the side's column of logprobs. Sides return raw distributions, which are brought to this temperature;
    top-p and top-k do not apply to them.
    """
    import numpy as np

    positions = rollouts.columns.get("full_positions") if not number else first(rollouts, number)
    if positions is None or not len(positions):
        return rollouts
    owners = np.searchsorted(rollouts.starts, positions, "right") - 1
    pieces = {
        owner: _score_positions(
            rollouts, positions[owners == owner] - int(rollouts.starts[owner]), owner, source, folder
        )
        for owner in np.unique(owners).tolist()
    }
    rows = np.full((len(positions), max(piece.shape[1] for piece in pieces.values())), -np.inf, "<f4")
    for owner, piece in pieces.items():
        rows[owners == owner, : piece.shape[1]] = piece
    if temperature != 1:
        rows = _apply_temperature(temperature, rows)
    return rollouts.with_columns(None, full_positions=positions, **{f"{side}_full_logprobs": rows})


def first(rollouts: Rollouts, number: int) -> NDArray[Any]:
    """Return the indices of the first response tokens in the rollouts' columns: int64 [at most number]."""
    import numpy as np

    parts: list[NDArray[Any]] = []
    total = 0
    for sequence in range(rollouts.sequence_count):
        if total >= number:
            break
        token_slice = rollouts.sequence(sequence)
        parts.append(np.arange(token_slice.start + max(1, int(rollouts.prompt_lengths[sequence])), token_slice.stop))
        total += len(parts[-1])
    return np.concatenate(parts)[:number].astype("<i8") if parts else np.zeros(0, "<i8")


def _score_positions(
    rollouts: Rollouts, places: NDArray[Any], owner: int, source: FullVocabSource, folder: Path
) -> NDArray[Any]:
    """Return the distribution at each place of a sequence: the row after the token before it.

    Scores one sequence at a time, up to the last place: a row of a large vocabulary has more than half a megabyte.
    """
    from safetensors.numpy import load_file

    tokens = rollouts.tokens[rollouts.sequence(owner)][: int(places.max()) + 1]
    table: NDArray[Any] = load_file(source.score_full_vocab([tuple(tokens.tolist())], folder))["0"][places - 1]
    return table


def _apply_temperature(temperature: float, rows: NDArray[Any]) -> NDArray[Any]:
    """Return log-softmax(rows / temperature), float32."""
    import numpy as np

    scaled = rows.astype(np.float64) / temperature
    top = scaled.max(1, keepdims=True)
    return np.asarray(scaled - top - np.log(np.exp(scaled - top).sum(1, keepdims=True)), "<f4")
