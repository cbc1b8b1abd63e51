"""What both sides decode greedily after the same prompt: as often the first thing that shows a model is not itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckptcheck.engines.base import Engine
from ckptcheck.trainers.base import Trainer


@dataclass(frozen=True)
class Speech:
    """The tokens that each side added to the prompt.

    gap: nats by which the trainer prefers its own token over the engine's, where the two first differ; 0 where they do not.
    engine_text, trainer_text: the tokens as text, "" without a tokenizer.
    """

    prompt: tuple[int, ...]
    engine: tuple[int, ...]
    trainer: tuple[int, ...]
    gap: float = 0.0
    engine_text: str = ""
    trainer_text: str = ""

    @property
    def parted(self) -> int | None:
        """Which token is the first that differs, counted from 0; None where all are the same."""
        pairs = enumerate(zip(self.engine, self.trainer, strict=False))
        return next((place for place, (one, other) in pairs if one != other), None)


def speech(engine: Engine, trainer: Trainer, prompt: Sequence[int], number: int) -> Speech:
    """Let both sides decode. Where they part, the trainer scores both ways on: a tie is no fault of either."""
    said = engine.score([prompt], decode=number)[0].decoded
    found = Speech(tuple(prompt), said, trainer.greedy(prompt, number))
    place = found.parted
    if place is None:
        return found
    common = [*prompt, *found.trainer[:place]]
    own, other = trainer.score([[*common, found.trainer[place]], [*common, said[place]]])
    return Speech(found.prompt, said, found.trainer, own[-1] - other[-1])
