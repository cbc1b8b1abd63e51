"""Draft models: what no trainer holds of them, and how many of their tokens the engine accepts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ckptcheck.live.runtime.trainers.spawn import BUFFERS

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.live.runtime.engines.base import Engine

FEWEST_GAINED = 0.2
"""Tokens that a draft model gains in a step at least; below that it guesses nothing that could get worse."""
KEPT_SHARE = 0.8
"""Share of the gain that may be left without a finding."""
ACCEPTED_TOKENS = 32
"""Tokens decoded from each prompt to measure an acceptance length."""


@dataclass(frozen=True)
class Acceptance:
    """Tokens that the engine gains in a decode step, over the same prompts: 1 where it accepts no token of the draft model."""

    after_sync: int
    """Number of the sync before it, 0 for the first cold load."""
    engine: float
    cold: float
    """Of the same engine, started cold from the same weights."""


@runtime_checkable
class Drafting(Protocol):
    """An engine that can count its decode steps."""

    def acceptance_length(self, prompts: Sequence[Sequence[int]], tokens: int) -> float:
        """Return the tokens per decode step over greedy responses of so many tokens, one request at a time."""
        ...


def measure_acceptance(engine: Engine, prompts: Sequence[Sequence[int]]) -> float | None:
    """Return the acceptance length; None for an engine without a draft model."""
    if engine.info.facts.get("draft", "") not in ("mtp", "model") or not isinstance(engine, Drafting):
        return None
    return engine.acceptance_length(prompts, ACCEPTED_TOKENS)


def find_untrained(source: Checkpoint, exported: Collection[str]) -> tuple[str, ...]:
    """Return the source's tensors that a trainer does not export, as layers for multi-token prediction; a tied head is none."""
    is_tied = source.config is not None and source.config.get("tie_word_embeddings") is True
    return tuple(
        name
        for name in source.tensors
        if name not in exported and not name.endswith(BUFFERS) and not (is_tied and name == "lm_head.weight")
    )
