"""Describes what an experiment changes about how a side scores; everything else stays as in the user's job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class TrainerChange:
    """A change of how the trainer scores the recorded tokens."""

    temperature: float | None = None
    """The trainer divides the logits by it before it computes logprobs; None: the recorded temperature."""
    top_p: float = 1.0
    top_k: int = 0
    """top_p and top_k truncate the distribution before logprobs are computed; 1 and 0: off."""
    drop: int = 0
    """How many tokens are removed from the beginning of each sequence."""
    prepend: tuple[int, ...] = ()
    """Token ids that are added before each sequence."""
    context: int | None = None
    """How many preceding tokens each token is computed from; None: all."""
    dtype: str | None = None
    """Compute dtype; None: the job's."""
    head_fp32: bool = False
    """Computes the output head in float32."""


@dataclass(frozen=True, slots=True)
class EngineChange:
    """A change of how the engine scores the recorded tokens."""

    path: Literal["", "prefill"] = ""
    """How the engine scores the tokens again; "": by decoding, as the job drew them."""
    fresh: bool = False
    """The engine empties its caches before each batch."""
    alone: bool = False
    """The engine scores each sequence by itself."""
    dtype: str | None = None
    """Compute dtype; None: the job's."""
    head_fp32: bool = False
    """Computes the output head in float32."""
    cold: bool = False
    """The engine starts from the trainer's weights."""
    config: bool = False
    """The engine starts with the trainer's config."""
