"""Scores with a trainer: adds its logprobs to rollouts (`ckptcheck parity score`), or lets it take the place of an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.engines.base import SequenceScores
from ckptcheck.live.runtime.engines.sampling import Generation, Sampling, sampling_per_prompt
from ckptcheck.live.runtime.trainers.base import Trainer
from ckptcheck.rollouts import Metadata, Rollouts, ScorerInfo
from ckptcheck.rollouts.expert_routing import add_expert_routing
from ckptcheck.rollouts.full_vocab import add_full_vocab_logprobs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TOKENS = 8192
"""Most tokens that the trainer gets at once, padding included. Megatron pads a batch; transformers takes single sequences."""
Tokens = Sequence[int]


def score_rollouts(
    rollouts: Rollouts,
    trainer: Trainer,
    *,
    temperature: float | None = None,
    version: int | None = None,
    tokens: int = TOKENS,
    folder: Path | None = None,
    advance: Callable[[int, int], None] | None = None,
) -> Rollouts:
    """Return the rollouts with the trainer's logprobs, float32, of every token but the first of a sequence.

    temperature: the number that divides the logits; None takes the temperature of the engine's logprobs, which is that of the
    sampling where they are processed, else 1. version: of the trainer's weights, as the engine counts them. tokens: most tokens
    of a batch, padding included. folder: a folder for full-vocabulary logprobs, which are computed where the rollouts have the
    engine's; None computes none. advance: is called with the numbers of scored and of all sequences.
    Raises CkptcheckError for rollouts that are damaged or hold tokens that the trainer does not have.
    """
    import msgspec
    import numpy as np

    if rollouts.defects:
        defect = rollouts.defects[0]
        raise CkptcheckError(
            f"{rollouts.name} cannot be scored: {defect.text}", hint="ckptcheck parity judge says more"
        )
    logprob_temperature = engine_logprob_temperature(rollouts.metadata) if temperature is None else temperature
    logprobs: NDArray[np.float32] = np.zeros(len(rollouts.tokens), "<f4")
    done = 0
    for batch in batch_by_length(rollouts, tokens):
        sequences = [rollouts.tokens[rollouts.sequence(place)].tolist() for place in batch]
        for place, values in zip(batch, trainer.score(sequences, temperature=logprob_temperature), strict=True):
            token_slice = rollouts.sequence(place)
            logprobs[token_slice.start + 1 : token_slice.stop] = values
        done += len(batch)
        if advance is not None:
            advance(done, rollouts.sequence_count)
    info = trainer.info
    side = ScorerInfo(
        info.name,
        info.version,
        info.dtype,
        info.layout,
        None if version is None else str(version),
        logprob_temperature,
        dict(info.facts),
    )
    metadata = msgspec.structs.replace(rollouts.metadata, trainer=side)
    scored = rollouts.with_columns(metadata, trainer_logprobs=logprobs)
    if "engine_routing" in rollouts:
        scored = add_expert_routing(scored, "trainer", trainer)
    if folder is None:
        return scored
    return add_full_vocab_logprobs(scored, "trainer", trainer, folder, temperature=logprob_temperature)


def engine_logprob_temperature(metadata: Metadata) -> float:
    """Return the temperature of the engine's logprobs; 1 for raw ones and for greedy sampling."""
    temperature = metadata.sampling.temperature
    return temperature if metadata.logprobs == "processed" and temperature else 1.0


def batch_by_length(rollouts: Rollouts, tokens: int) -> Iterator[list[int]]:
    """Yield batches of sequence numbers, ordered by length; the first sequence of a batch is its longest.

    A batch has at most `tokens` tokens, padding included; a longer sequence is a batch of its own. Sequences of fewer than two
    tokens are left out, because they have nothing to score.
    """
    import numpy as np

    lengths = np.diff(rollouts.starts)
    batch: list[int] = []
    for place in np.argsort(-lengths, kind="stable").tolist():
        if lengths[place] < 2:
            break
        if batch and int(lengths[batch[0]]) * (len(batch) + 1) > tokens:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def split_by_tokens(sequences: Sequence[Sequence[int]], tokens: int = TOKENS) -> Iterator[Sequence[Sequence[int]]]:
    """Yield the sequences in their order, in batches of at most `tokens` tokens with padding; a longer one is alone."""
    begin, longest = 0, 0
    for place, sequence in enumerate(sequences):
        longest = max(longest, len(sequence))
        if place > begin and longest * (place + 1 - begin) > tokens:
            yield sequences[begin:place]
            begin, longest = place, len(sequence)
    if begin < len(sequences):
        yield sequences[begin:]


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
