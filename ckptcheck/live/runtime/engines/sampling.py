"""The parameters of a request to generate, and the response."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters of one request."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """1 is off."""
    top_k: int = 0
    """0 is off."""
    max_tokens: int = 16
    seed: int | None = None
    """None lets the engine choose."""
    ignore_eos: bool = False
    """Continue past the end token, so that the response has exactly max_tokens."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token that the response has already; 0 is off."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of a token as often as the response has it already; 0 is off."""
    repetition_penalty: float = 1.0
    """Divides the positive logits of tokens that the prompt or the response has, and multiplies the negative ones; 1 is off."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One response."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Natural, of each sampled token, as the engine reports them (raw or processed, as its `logprobs` switch says)."""
    finish_reason: str = ""
    """The engine's own word (stop, length, abort)."""
    weight_versions: tuple[str, ...] = ()
    """The weight version of each token; () if the engine reports none."""
    cached_tokens: int = 0
    """Tokens of the prompt that came from the prefix cache."""


def sampling_per_prompt(sampling: Sampling | Sequence[Sampling], count: int) -> list[Sampling]:
    """Return one `Sampling` for each of `count` prompts."""
    return [sampling] * count if isinstance(sampling, Sampling) else list(sampling)
