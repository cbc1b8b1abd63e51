"""Adds a trainer's logprobs to rollouts, without an engine: what `ckptcheck parity score` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.trainers.base import Trainer
from ckptcheck.rollouts import Metadata, Rollouts, ScorerInfo
from ckptcheck.rollouts.expert_routing import add_expert_routing
from ckptcheck.rollouts.full_vocab import add_full_vocab_logprobs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TOKENS = 8192
"""Most tokens that the trainer gets at once, padding included. Megatron pads a batch; transformers takes single sequences."""


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
