"""Logprobs of the whole vocabulary for some tokens: what the exact KL needs, and no more, for they are large."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ckptcheck.rollouts import Rollouts

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Told(Protocol):
    """An engine or a trainer."""

    def full(self, sequences: Sequence[Sequence[int]], folder: Path) -> Path:
        """Write the logprobs of the whole vocabulary after each token but the last, and return the file."""
        ...


def with_full(
    rollouts: Rollouts, side: str, told: Told, folder: Path, *, number: int = 0, temperature: float = 1.0
) -> Rollouts:
    """Add a side's logprobs (``engine`` or ``trainer``), float32 [positions, vocabulary].

    number: of how many response tokens, from the first on; 0: of those for which the other side has them.
    temperature: at which the side's column of logprobs was taken. Distributions are told raw, and brought to it, so that
    both say the same; top-p and top-k are not applied to them.
    """
    import numpy as np

    positions = rollouts.columns.get("full_positions") if not number else first(rollouts, number)
    if positions is None or not len(positions):
        return rollouts
    owners = np.searchsorted(rollouts.starts, positions, "right") - 1
    pieces = {
        owner: _rows(rollouts, positions[owners == owner] - int(rollouts.starts[owner]), owner, told, folder)
        for owner in np.unique(owners).tolist()
    }
    rows = np.full((len(positions), max(piece.shape[1] for piece in pieces.values())), -np.inf, "<f4")
    for owner, piece in pieces.items():
        rows[owners == owner, : piece.shape[1]] = piece
    if temperature != 1:
        rows = _at(temperature, rows)
    return rollouts.with_columns(None, full_positions=positions, **{f"{side}_full_logprobs": rows})


def first(rollouts: Rollouts, number: int) -> NDArray[Any]:
    """Return the places of the first response tokens: int64 [at most number]."""
    import numpy as np

    found: list[NDArray[Any]] = []
    taken = 0
    for place in range(rollouts.number):
        if taken >= number:
            break
        where = rollouts.sequence(place)
        found.append(np.arange(where.start + max(1, int(rollouts.prompts[place])), where.stop))
        taken += len(found[-1])
    return np.concatenate(found)[:number].astype("<i8") if found else np.zeros(0, "<i8")


def _rows(rollouts: Rollouts, places: NDArray[Any], owner: int, told: Told, folder: Path) -> NDArray[Any]:
    """Return the row that tells of each place in a sequence: the one after the token before it.

    A sequence at a time, and no further than the last place: a row of a large vocabulary is more than half a megabyte.
    """
    from safetensors.numpy import load_file

    tokens = rollouts.tokens[rollouts.sequence(owner)][: int(places.max()) + 1]
    table: NDArray[Any] = load_file(told.full([tuple(tokens.tolist())], folder))["0"][places - 1]
    return table


def _at(temperature: float, rows: NDArray[Any]) -> NDArray[Any]:
    """Return log-softmax(rows / temperature), float32."""
    import numpy as np

    scaled = rows.astype(np.float64) / temperature
    top = scaled.max(1, keepdims=True)
    return np.asarray(scaled - top - np.log(np.exp(scaled - top).sum(1, keepdims=True)), "<f4")
