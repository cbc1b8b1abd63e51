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


def with_full(rollouts: Rollouts, side: str, told: Told, folder: Path, *, number: int = 0) -> Rollouts:
    """Add a side's logprobs (``engine`` or ``trainer``), float32 [positions, vocabulary].

    number: of how many response tokens, from the first on; 0: of those for which the other side has them.
    """
    from safetensors.numpy import load_file

    positions = rollouts.columns.get("full_positions") if not number else first(rollouts, number)
    if positions is None or not len(positions):
        return rollouts
    owners = _owners(rollouts, positions)
    wanted = list(dict.fromkeys(owners))
    tables = load_file(told.full([tuple(rollouts.tokens[rollouts.sequence(each)].tolist()) for each in wanted], folder))
    rows = _rows(rollouts, positions, owners, {each: tables[str(place)] for place, each in enumerate(wanted)})
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


def _owners(rollouts: Rollouts, positions: NDArray[Any]) -> list[int]:
    import numpy as np

    return [int(each) for each in np.searchsorted(rollouts.starts, positions, "right") - 1]


def _rows(
    rollouts: Rollouts, positions: NDArray[Any], owners: Sequence[int], tables: dict[int, NDArray[Any]]
) -> NDArray[Any]:
    """Return the row that tells of each position: the one after the token before it."""
    import numpy as np

    wide = max(table.shape[1] for table in tables.values())
    found = np.full((len(positions), wide), -np.inf, "<f4")
    for row, (position, owner) in enumerate(zip(positions.tolist(), owners, strict=True)):
        told = tables[owner][position - int(rollouts.starts[owner]) - 1]
        found[row, : len(told)] = told
    return found
