"""Queries on rollouts that several rules share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckptcheck.rollouts.columns import SIDES
from ckptcheck.rollouts.metrics.routing_record import RoutingRecord, RowMatches
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.text.formatting import count

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class TokenMatches:
    """The tokens that match a test, and the first of them."""

    number: int
    """Number of matching tokens."""
    sequences: int
    """Number of sequences with a match."""
    sequence: int
    """Sequence of the first match, from 0."""
    position: int
    """Position of the first match in its sequence, from 0."""
    value: float
    """Value of the first match."""

    @property
    def place(self) -> str:
        """Sequence and position of the first match, as a text."""
        return f"sequence {self.sequence}, token {self.position}"


def find_tokens(
    evidence: RolloutEvidence, column: str, test: Callable[[NDArray[Any]], NDArray[Any]], *, masked: bool = True
) -> TokenMatches | None:
    """Return the tokens whose value in a column matches a test, under the mask or everywhere; None without a match."""
    import numpy as np

    number, sequences, first = 0, 0, None
    for block in evidence.rollouts.blocks():
        values = block.column(column)
        is_match = test(values) & block.mask if masked else test(values)
        indices = np.flatnonzero(is_match)
        if not len(indices):
            continue
        number += len(indices)
        owners = block.owners[indices]
        sequences += len(np.unique(owners))
        if first is None:
            first = int(owners[0]), int(block.positions[indices[0]]), float(values[indices[0]])
    return None if first is None else TokenMatches(number, sequences, *first)


def list_logprob_columns(evidence: RolloutEvidence) -> Iterator[str]:
    """Yield the columns of logprobs that the rollouts have."""
    yield from (f"{side}_logprobs" for side in SIDES if f"{side}_logprobs" in evidence.rollouts)


def describe_logprob_column(column: str) -> str:
    """``engine_logprobs`` → ``the engine's logprob``."""
    side = column.removesuffix("_logprobs")
    return f"the {'reference model' if side == 'reference' else side}'s logprob"


def describe_staleness(evidence: RolloutEvidence) -> str:
    """Return a clause that the tokens are older than the trainer's weights, which may explain a gap; "" where they are not."""
    newest = compute_version_lag(evidence)
    return (
        f"; the tokens are up to {newest[1]} versions older than the trainer's weights"
        if newest and newest[1] > 0
        else ""
    )


def compute_version_lag(evidence: RolloutEvidence) -> tuple[int, int] | None:
    """Return the smallest and the largest number of versions that tokens lag behind the trainer's weights; None if unknown."""
    trainer = evidence.rollouts.metadata.trainer
    spans = evidence.rollouts.columns.get("version_spans")
    if trainer is None or trainer.weight_version is None or spans is None or not len(spans):
        return None
    versions = [evidence.rollouts.metadata.versions[index] for index in set(spans[:, 2].tolist())]
    numbers = [parse_version(word) for word in (trainer.weight_version, *versions)]
    if any(number is None for number in numbers):
        return None
    trainer_version, *token_versions = (number for number in numbers if number is not None)
    return trainer_version - max(token_versions), trainer_version - min(token_versions)


def compute_mean_lag(evidence: RolloutEvidence) -> float | None:
    """Return how many versions the compared tokens lag behind the trainer's weights, as a mean; None where that is unknown."""
    if compute_version_lag(evidence) is None:
        return None
    import numpy as np

    rollouts = evidence.rollouts
    trainer = rollouts.metadata.trainer
    assert trainer is not None
    newest = parse_version(trainer.weight_version or "") or 0
    compared = np.concatenate([np.zeros(0, bool), *(block.mask for block in rollouts.blocks())])
    total = lag = 0.0
    for begin, end, index in np.asarray(rollouts.columns["version_spans"]).tolist():
        tokens = int(np.count_nonzero(compared[begin:end]))
        total += tokens
        lag += tokens * (newest - (parse_version(rollouts.metadata.versions[index]) or 0))
    return lag / total if total else None


OWN = ("vllm", "sglang", "transformers", "megatron")
"""The engines and trainers with which ckptcheck measures floors.

A framework's trainer has the framework's name, and may run the code of one of these.
"""


def find_floor_mismatches(evidence: RolloutEvidence) -> Iterator[str]:
    """Yield the known differences between the set-up of the floor and that of the rollouts."""
    floor, metadata = evidence.floor, evidence.rollouts.metadata
    assert floor is not None
    for side_name, side in (("engine", metadata.engine), ("trainer", metadata.trainer)):
        words = getattr(floor, side_name).split()
        if not words or side is None:
            continue
        comparisons = [(words[0], side.name if side.name in OWN else "", f"{side_name} ")]
        # name, version, dtype
        if len(words) > 2:
            comparisons.append((words[-1], side.dtype, f"{side_name} in "))
        for floor_value, value, label in comparisons:
            if value and floor_value != value:
                yield f"{label}{floor_value} instead of {value}"
    if floor.vocabulary and metadata.vocabulary and floor.vocabulary != metadata.vocabulary:
        yield f"a vocabulary of {floor.vocabulary} instead of {metadata.vocabulary}"


def parse_version(version: str) -> int | None:
    """Return a version as a number; None for hashes and names, which have no order."""
    return int(version) if version.isascii() and version.isdecimal() and len(version) < 19 else None


def describe_rows(record: RoutingRecord, matches: RowMatches) -> str:
    """Return ``12 of 140 rows in 3 sequences``."""
    return f"{matches.number:,} of {count(record.due_rows, 'row')} in {count(matches.sequences, 'sequence')}"
