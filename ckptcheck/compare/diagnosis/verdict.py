"""The results of a diagnosis: causes of one tensor, and a sentence about all tensors with the same causes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from ckptcheck.compare.diagnosis.inputs import TensorKey

Confidence = Literal["exact", "rounded", "likely", "unknown"]
"""exact: the cause reproduces every bit. rounded: it reproduces every element within the rounding of the dtype. likely: the
actual tensor looks like it, but nothing can reproduce it. unknown: no cause fits."""
ORDER: tuple[Confidence, ...] = ("exact", "rounded", "likely", "unknown")


class Cause(msgspec.Struct, frozen=True):
    """Why a tensor differs."""

    # The kind of cause.
    code: str
    # How a sentence says it, without a subject.
    text: str
    confidence: Confidence = "exact"
    # Causes with the same code and group share a sentence; "" stands for the text.
    group: str = ""
    # The layer or expert whose tensor is here, if that is the cause.
    layer: int | None = None
    expert: int | None = None


class Explanation(msgspec.Struct, frozen=True):
    """The causes that together explain one difference."""

    key: TensorKey
    causes: tuple[Cause, ...]
    evidence: str = ""
    # Cosine between both sides, where it was computed.
    cosine: float | None = None
    # q, k, v, gate or up, if only that member differs.
    member: str = ""
    # Only the cheap causes were tried.
    cheap_only: bool = False

    @property
    def confidence(self) -> Confidence:
        """The weakest confidence of the causes."""
        return max((cause.confidence for cause in self.causes), key=ORDER.index)


class Verdict(msgspec.Struct, frozen=True):
    """One sentence about tensors that differ for the same reason."""

    # Codes; several if they explain the difference only together.
    causes: tuple[str, ...]
    # Without a final full stop.
    sentence: str
    # Names of the tensors.
    tensors: tuple[str, ...]
    confidence: Confidence
    # How the cause was confirmed; for an unknown cause what the difference looks like.
    evidence: str
