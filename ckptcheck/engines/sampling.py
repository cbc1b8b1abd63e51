"""How an engine is asked to generate, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptcheck.engines.base import Answer


@dataclass(frozen=True, slots=True)
class Sampling:
    """One request's sampling. temperature 0: greedy. top_p 1 and top_k 0: off. seed: None lets the engine choose.

    ignore_eos: go on past the end token, so that exactly max_tokens come.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 16
    seed: int | None = None
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Generation:
    """One response. logprobs: natural, of each sampled token, as the engine reports them (raw or processed: its switch says).

    finish: the engine's own word (stop, length, abort). versions: the weight version of each token, () where it tells none.
    cached: tokens of the prompt that came from the prefix cache.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str = ""
    versions: tuple[str, ...] = ()
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Inflight:
    """An update of the weights while requests were running. answer: of the update. generations: of the requests, in order."""

    answer: Answer
    generations: tuple[Generation, ...]


def each(sampling: Sampling | Sequence[Sampling], number: int) -> list[Sampling]:
    """Return one sampling for each request."""
    return [sampling] * number if isinstance(sampling, Sampling) else list(sampling)
