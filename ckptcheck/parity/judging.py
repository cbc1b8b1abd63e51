"""What several rules ask of rollouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptcheck.parity.judged import Judged
from ckptcheck.rollouts.columns import SIDES

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Seen:
    """Tokens that a test holds for. number: how many, in how many sequences; the first of them."""

    number: int
    sequences: int
    sequence: int
    position: int
    value: float

    @property
    def place(self) -> str:
        """Where the first is."""
        return f"sequence {self.sequence}, token {self.position}"


def seen(
    judged: Judged, column: str, test: Callable[[NDArray[Any]], NDArray[Any]], *, masked: bool = True
) -> Seen | None:
    """Return which values of a column of tokens a test holds for, under the mask or everywhere; None where for none."""
    import numpy as np

    number, sequences, first = 0, 0, None
    for block in judged.rollouts.blocks():
        values = block.column(column)
        hit = test(values) & block.mask if masked else test(values)
        at = np.flatnonzero(hit)
        if not len(at):
            continue
        number += len(at)
        owners = block.owners[at]
        sequences += len(np.unique(owners))
        if first is None:
            first = int(owners[0]), int(block.positions[at[0]]), float(values[at[0]])
    return None if first is None else Seen(number, sequences, *first)


def logprob_columns(judged: Judged) -> Iterator[str]:
    """The columns of logprobs that there are."""
    yield from (f"{side}_logprobs" for side in SIDES if f"{side}_logprobs" in judged.rollouts)


def whose(column: str) -> str:
    """``engine_logprobs`` → ``the engine's logprob``."""
    side = column.removesuffix("_logprobs")
    return f"the {'reference model' if side == 'reference' else side}'s logprob"


def older(judged: Judged) -> str:
    """Say that the tokens are older than the trainer's weights, where that is known: a gap may come from there."""
    newest = lag(judged)
    return (
        f"; the tokens are up to {newest[1]} versions older than the trainer's weights"
        if newest and newest[1] > 0
        else ""
    )


def lag(judged: Judged) -> tuple[int, int] | None:
    """Return the smallest and the largest number of versions that tokens lag behind the trainer's weights; None if unknown."""
    trainer = judged.rollouts.metadata.trainer
    spans = judged.rollouts.columns.get("version_spans")
    if trainer is None or trainer.weight_version is None or spans is None or not len(spans):
        return None
    import numpy as np

    used = [judged.rollouts.metadata.versions[index] for index in np.unique(spans[:, 2]).tolist()]
    numbers = [number_of(word) for word in (trainer.weight_version, *used)]
    if any(number is None for number in numbers):
        return None
    at, *others = (number for number in numbers if number is not None)
    return at - max(others), at - min(others)


OWN = ("vllm", "sglang", "transformers", "megatron")
"""What a floor can be measured with. A framework's trainer has the framework's name and may run the very code of one of these."""


def foreign(judged: Judged) -> Iterator[str]:
    """Say in what the floor's set-up is known to be another one than that of the rollouts."""
    floor, about = judged.floor, judged.rollouts.metadata
    assert floor is not None
    for who, side in (("engine", about.engine), ("trainer", about.trainer)):
        words = getattr(floor, who).split()
        if not words or side is None:
            continue
        known = [(words[0], side.name if side.name in OWN else "", f"{who} ")]
        if len(words) > 2:  # name, version, dtype
            known.append((words[-1], side.dtype, f"{who} in "))
        yield from (f"{label}{was} for {now}" for was, now, label in known if now and was != now)
    if floor.vocabulary and about.vocabulary and floor.vocabulary != about.vocabulary:
        yield f"a vocabulary of {floor.vocabulary} for {about.vocabulary}"


def number_of(version: str) -> int | None:
    """Return a version that is a whole number as such; hashes and names have no order."""
    return int(version) if version.isascii() and version.isdecimal() and len(version) < 19 else None
