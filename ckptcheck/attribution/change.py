"""What an experiment changes: one thing about how a side scores, everything else as the job has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class TrainerChange:
    """temperature, top_p, top_k: of the distribution whose logprobs are taken. dtype, head_fp32: in which it computes.

    drop: tokens left out at the beginning of each sequence; prepend: tokens put there. context: how many tokens before it
    a token is computed from, None for all.
    """

    temperature: float | None = None
    top_p: float = 1.0
    top_k: int = 0
    drop: int = 0
    prepend: tuple[int, ...] = ()
    context: int | None = None
    dtype: str | None = None
    head_fp32: bool = False


@dataclass(frozen=True, slots=True)
class EngineChange:
    """path: how the same tokens are scored again; "" as the job drew them. fresh: with caches emptied before each sequence.

    alone: each sequence by itself. dtype, head_fp32: in which it computes. cold: started from the trainer's weights.
    config: started with the trainer's config.
    """

    path: Literal["", "prefill"] = ""
    fresh: bool = False
    alone: bool = False
    dtype: str | None = None
    head_fp32: bool = False
    cold: bool = False
    config: bool = False
