"""Lets a trainer take the place of an engine, so that two trainers can be compared directly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ckptcheck.live.experiments.scoring import split_by_tokens
from ckptcheck.live.runtime.engines.base import SequenceScores
from ckptcheck.live.runtime.engines.sampling import Generation, Sampling, sampling_per_prompt
from ckptcheck.live.runtime.trainers.base import Trainer

Tokens = Sequence[int]


class ResponseEngine(Protocol):
    """An engine that draws responses and scores given tokens, as in `Scorer` and `Generator`; a trainer can take its place."""

    def generate(self, prompts: Sequence[Tokens], sampling: Sampling | Sequence[Sampling]) -> list[Generation]:
        """Return a response for each prompt."""
        ...

    def score(self, sequences: Sequence[Tokens]) -> list[SequenceScores]:
        """Score sequences by prefill."""
        ...

    def score_by_decode(self, sequences: Sequence[Tokens], prompt: int) -> list[tuple[float, ...]]:
        """Return the logprobs of the tokens after the first `prompt` ones."""
        ...

    def reset_prefix_cache(self) -> None:
        """Drop all cached keys and values."""
        ...


class TrainerAsEngine:
    """A trainer that answers as an engine does.

    Its logprobs of a response are those of one forward pass over prompt and response, padded to the longest sequence of a batch
    where there are several. The trainer is not closed by it.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def generate(self, prompts: Sequence[Tokens], sampling: Sampling | Sequence[Sampling]) -> list[Generation]:
        """Sample responses. The first sampling counts for all prompts, and its seed for the first of them."""
        first = sampling_per_prompt(sampling, len(prompts))[0]
        responses = self._trainer.sample(
            prompts, first.max_tokens, temperature=first.temperature, top_p=first.top_p, top_k=first.top_k,
            seed=first.seed or 0,
        )  # fmt: skip
        sequences = [(*prompt, *tokens) for prompt, tokens in zip(prompts, responses, strict=True)]
        return [
            Generation(tuple(tokens), values[len(prompt) - 1 :], "length")
            for prompt, tokens, values in zip(prompts, responses, self._score(sequences), strict=True)
        ]

    def score(self, sequences: Sequence[Tokens]) -> list[SequenceScores]:
        """Score sequences."""
        return [SequenceScores(values) for values in self._score(sequences)]

    def score_by_decode(self, sequences: Sequence[Tokens], prompt: int) -> list[tuple[float, ...]]:
        """Return the logprobs of the tokens after the first `prompt` ones: a trainer has no decoding of its own."""
        return [values[prompt - 1 :] for values in self._score(sequences)]

    def reset_prefix_cache(self) -> None:
        """Do nothing: a trainer caches no prefix."""

    def _score(self, sequences: Sequence[Tokens]) -> list[tuple[float, ...]]:
        return [values for batch in split_by_tokens(sequences) for values in self._trainer.score_batched(batch)]


def decode_again(
    engine: ResponseEngine, sequences: Sequence[Tokens], starts: Sequence[int], batch: int
) -> list[Sequence[float]]:
    """Force an engine to decode responses again, and return the logprobs of each.

    starts: where each response begins. batch: sequences that it decodes together. Forcing begins at the end of the shortest
    prompt of a batch, so the rest of longer ones is forced too.
    """
    decoded: list[Sequence[float]] = []
    for begin in range(0, len(sequences), batch):
        first = min(starts[begin : begin + batch])
        rows = engine.score_by_decode(sequences[begin : begin + batch], first)
        decoded += [row[start - first :] for row, start in zip(rows, starts[begin : begin + batch], strict=True)]
    return decoded
