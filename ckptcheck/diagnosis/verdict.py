"""What a diagnosis says: per tensor a cause, over all tensors a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ckptcheck.diagnosis.sides import Key

Confidence = Literal["exact", "rounded", "likely", "unknown"]
"""exact: the cause reproduces every bit. rounded: every element within the rounding of the dtype. likely: what is there
fits, but nothing could reproduce it. unknown: no cause fits."""
ORDER: tuple[Confidence, ...] = ("exact", "rounded", "likely", "unknown")


@dataclass(frozen=True)
class Cause:
    """code: what kind it is; text: how a sentence says it, without a subject.

    group: causes with the same code and group are told in one sentence; the text where it is empty.
    layer, expert: the one that the tensor holds instead of its own, where that is the cause.
    """

    code: str
    text: str
    confidence: Confidence = "exact"
    group: str = ""
    layer: int | None = None
    expert: int | None = None


@dataclass(frozen=True)
class Finding:
    """The causes of one difference; together they explain it. member: q, k, v, gate or up, where it is only that part.

    hasty: only the causes that are cheap to try were tried.
    """

    key: Key
    causes: tuple[Cause, ...]
    evidence: str = ""
    member: str = ""
    hasty: bool = False

    @property
    def confidence(self) -> Confidence:
        """The weakest of the causes'."""
        return max((cause.confidence for cause in self.causes), key=ORDER.index)


@dataclass(frozen=True)
class Verdict:
    """One sentence about tensors that differ for the same reason.

    causes: codes; several where only together they explain the difference. sentence: without a final full stop.
    tensors: the names concerned. evidence: how it was seen, or for unknown causes what the difference looks like.
    """

    causes: tuple[str, ...]
    sentence: str
    tensors: tuple[str, ...]
    confidence: Confidence
    evidence: str
