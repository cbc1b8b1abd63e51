"""Takes sequences out of tables that pad them: tokens [B, S], and numbers of some of their columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ckptcheck.rollouts.build import Rollout, UnusableSequence
from ckptcheck.rollouts.convert.reading import read_each
from ckptcheck.text.formatting import format_shape

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class PaddedBatch:
    """Sequences of different lengths as tables [B, S]; column t of every table is about token t."""

    ids: NDArray[Any]
    is_token: NDArray[np.bool_]
    """False for padding, wherever it stands."""
    is_response: NDArray[np.bool_]
    """True from the first token of the response on; what follows within the sequence counts as response."""
    mask: NDArray[np.bool_]
    """True for the tokens that are trained."""
    logprobs: Mapping[str, NDArray[Any]]
    """`engine`, `trainer`, `reference` → logprobs."""
    rewards: NDArray[Any] | None = None
    """One for each sequence."""
    advantages: NDArray[Any] | None = None
    """One for each sequence, or one for each token."""
    versions: NDArray[Any] | None = None
    """Weight version of each token; negative if unknown."""
    truncated: NDArray[Any] | None = None
    """Of each sequence: whether its response was cut off."""
    others: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Names of fields of `Rollout` → values [B, S, …]."""

    def to_rollouts(self) -> list[Rollout | UnusableSequence]:
        """Return the sequences without their padding."""
        return read_each(self._to_rollout, range(len(self.ids)))

    def _to_rollout(self, row: int) -> Rollout:
        kept = self.is_token[row]
        responses = self.is_response[row][kept]
        versions = None if self.versions is None else self.versions[row][kept].tolist()
        return Rollout(
            tokens=self.ids[row][kept],
            prompt=int(responses.argmax()) if responses.any() else int(kept.sum()),
            mask=self.mask[row][kept],
            reward=None if self.rewards is None else float(self.rewards[row]),
            finish="truncated" if self.truncated is not None and self.truncated[row] else "",
            advantages=_select_advantages(self.advantages, row, kept),
            versions=() if versions is None else [str(version) if version >= 0 else "" for version in versions],
            **{side: table[row][kept] for side, table in self.logprobs.items()},
            **{name: table[row][kept] for name, table in self.others.items()},
        )


def _select_advantages(advantages: NDArray[Any] | None, row: int, kept: NDArray[Any]) -> Any:
    if advantages is None:
        return None
    return float(advantages[row]) if advantages.ndim == 1 else advantages[row][kept]


def require_table(tensors: Mapping[str, Any], name: str, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
    """Return the whole numbers [B, S] of a name. Raises KeyError, and UnusableSequence where it is no such table."""
    import numpy as np

    table = tensors[name]
    if not isinstance(table, np.ndarray) or table.ndim != 2 or table.dtype.kind not in "iub":
        raise UnusableSequence(f"{name} is no table of whole numbers [sequences, tokens]")
    if shape is not None and table.shape != shape:
        raise UnusableSequence(f"{name} is {format_shape(table.shape)}, and {format_shape(shape)} is expected")
    return table


def widen(
    tensors: Mapping[str, Any], name: str, shape: tuple[int, int], due: tuple[int, int], before: int
) -> NDArray[Any]:
    """Return numbers of some columns as a table of all, 0 elsewhere.

    shape: of the result. due: the shape that the numbers must have. before: the columns in front of them.
    Raises UnusableSequence where they have another shape or are no numbers.
    """
    import numpy as np

    values = tensors[name]
    if not isinstance(values, np.ndarray) or values.shape != due or values.dtype.kind not in "iufb":
        raise UnusableSequence(f"{name} is {format_shape(np.shape(values))}, and {format_shape(due)} is expected")
    wide = np.zeros(shape, values.dtype)
    wide[:, before : before + due[1]] = values
    return wide


def read_advantages(
    tensors: Mapping[str, Any], shape: tuple[int, int], due: tuple[int, int], before: int
) -> NDArray[Any] | None:
    """Return `advantages`: one number for each sequence, or of some columns as a table of all; None where there are none.

    shape, due, before: as `widen` takes them. Advantages of another shape are left out, for nothing is compared with them alone.
    """
    import numpy as np

    values = tensors.get("advantages")
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f":
        return None
    if values.shape == due:
        return widen(tensors, "advantages", shape, due, before)
    return values if values.shape == shape[:1] else None


def read_rewards(tensors: Mapping[str, Any], names: tuple[str, ...], number: int) -> NDArray[Any] | None:
    """Return one number for each sequence: the first of these tensors that has so many; None where there is none."""
    import numpy as np

    for name in names:
        values = tensors.get(name)
        if isinstance(values, np.ndarray) and values.shape == (number,) and values.dtype.kind in "iufb":
            return values
    return None
