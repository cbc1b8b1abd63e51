"""How far each side is from itself: what differs by less says nothing.

Rounding depends on the order of sums, and that on how many tokens are computed together and by which kernel. So the same
weights give logprobs that differ, by 1e-6 nats in float32 and by hundredths in bfloat16; how much is measured, not assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ckptcheck.engines.base import Engine
from ckptcheck.refit.apart import apart
from ckptcheck.trainers.base import Trainer

EXACT = 1e-5
"""Nats by which two implementations in float32 may differ at least: 30 layers of SmolLM2-135M came to 6e-6 on CPUs."""
SIDES = 3
"""Two implementations differ from each other by more than each from itself: their sums are in another order everywhere."""


@dataclass(frozen=True)
class Noise:
    """The largest difference of one side's logprobs from its own, in nats, over the same weights and tokens.

    repeat: asked again. batch: every sequence alone, and all together. decode: by decoding, and by prefill (an engine).
    """

    repeat: float = 0.0
    batch: float = 0.0
    decode: float = 0.0

    @property
    def most(self) -> float:
        """Return the largest."""
        return max(self.repeat, self.batch, self.decode)


@dataclass(frozen=True)
class Floor:
    """The noise of both sides, measured after the cold load."""

    engine: Noise = field(default_factory=Noise)
    trainer: Noise = field(default_factory=Noise)

    @property
    def sides(self) -> float:
        """Nats by which trainer and engine may be apart over the same weights."""
        return max(EXACT, SIDES * max(self.engine.most, self.trainer.most))

    @property
    def loads(self) -> float:
        """Nats by which an engine and the same engine started anew may be apart, asked the same in the same way."""
        return max(1e-6, self.engine.repeat)


def measured(engine: Engine, trainer: Trainer, sequences: Sequence[Sequence[int]]) -> Floor:
    """Score the same sequences again, alone, and by decoding. The engine's prefix cache is reset before each."""

    def fresh(some: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
        engine.reset_prefix_cache()
        return [each.prompt for each in engine.score(some)]

    together, again = fresh(sequences), fresh(sequences)
    alone = [fresh([tokens])[0] for tokens in sequences]
    engine.reset_prefix_cache()
    decoded = engine.follow(sequences, 1)
    own, repeated = trainer.score(sequences), trainer.score(sequences)
    single = [trainer.score([tokens])[0] for tokens in sequences]
    return Floor(
        Noise(_most(together, again), _most(together, alone), _most(together, decoded)),
        Noise(_most(own, repeated), _most(own, single)),
    )


def _most(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float:
    return max((apart(a, b) for a, b in zip(one, other, strict=True)), default=0.0)
