"""Adds a trainer's logprobs to rollouts, with no engine anywhere near: what `ckptcheck parity score` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.errors import CkptcheckError
from ckptcheck.parity.full import with_full
from ckptcheck.parity.routes import with_routes
from ckptcheck.rollouts import Metadata, Rollouts, Side
from ckptcheck.trainers.base import Trainer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TOKENS = 8192
"""Tokens that the trainer is handed at once, padding included. Megatron fills a batch up; transformers takes one by one."""


def score(
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

    temperature: by which logits are divided; None takes that at which the engine's logprobs were taken: the sampling's
    where they are processed, else 1. version: of the trainer's weights, as the engine counts them. folder: for logprobs of
    the whole vocabulary, where the engine's are in the file.
    Raises CkptcheckError for rollouts that are damaged or hold tokens that the trainer does not have.
    """
    import msgspec
    import numpy as np

    if rollouts.defects:
        worst = rollouts.defects[0]
        raise CkptcheckError(f"{rollouts.name} cannot be scored: {worst.text}", hint="ckptcheck parity judge says more")
    heat = due(rollouts.metadata) if temperature is None else temperature
    found: NDArray[np.float32] = np.zeros(len(rollouts.tokens), "<f4")
    done = 0
    for batch in batches(rollouts, tokens):
        asked = [rollouts.tokens[rollouts.sequence(place)].tolist() for place in batch]
        for place, values in zip(batch, trainer.score(asked, temperature=heat), strict=True):
            where = rollouts.sequence(place)
            found[where.start + 1 : where.stop] = values
        done += len(batch)
        if advance is not None:
            advance(done, rollouts.number)
    info = trainer.info
    side = Side(
        info.name,
        info.version,
        info.dtype,
        info.layout,
        None if version is None else str(version),
        heat,
        dict(info.facts),
    )
    metadata = msgspec.structs.replace(rollouts.metadata, trainer=side)
    scored = rollouts.with_columns(metadata, trainer_logprobs=found)
    if "engine_routing" in rollouts:
        scored = with_routes(scored, "trainer", trainer)
    return with_full(scored, "trainer", trainer, folder, temperature=heat) if folder is not None else scored


def due(metadata: Metadata) -> float:
    """Return the temperature of the engine's logprobs. Greedy sampling divides by none."""
    heat = metadata.sampling.temperature
    return heat if metadata.logprobs == "processed" and heat else 1.0


def batches(rollouts: Rollouts, tokens: int) -> Iterator[list[int]]:
    """Yield numbers of sequences of like length: a batch is padded to its longest, which is its first.

    At most `tokens` a batch, padding included; a longer sequence comes alone. Sequences of fewer than two tokens have nothing
    to score.
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
