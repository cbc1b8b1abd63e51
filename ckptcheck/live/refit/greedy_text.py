"""What both sides decode greedily from the same prompt: often the first sign that the weights are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ckptcheck.live.runtime.engines.base import Scorer
from ckptcheck.live.runtime.trainers.base import Trainer


@dataclass(frozen=True)
class GreedyText:
    """The tokens that each side added to the prompt."""

    prompt: tuple[int, ...]
    engine: tuple[int, ...]
    trainer: tuple[int, ...]
    gap: float = 0.0
    """Nats by which the trainer prefers its own token over the engine's, where the two first differ; 0 if they never do."""
    engine_text: str = ""
    """The engine's tokens as text, "" without a tokenizer."""
    trainer_text: str = ""

    @property
    def first_divergence(self) -> int | None:
        """The first token that differs, counted from 0; None if all are the same."""
        pairs = enumerate(zip(self.engine, self.trainer, strict=False))
        return next((place for place, (engine, trainer) in pairs if engine != trainer), None)


def decode_both(engine: Scorer, trainer: Trainer, prompt: Sequence[int], number: int) -> GreedyText:
    """Let both sides decode. Where they differ, the trainer scores both continuations: in a tie neither is wrong."""
    engine_tokens = engine.score([prompt], decode=number)[0].decoded_tokens
    greedy = GreedyText(tuple(prompt), engine_tokens, trainer.decode_greedy(prompt, number))
    place = greedy.first_divergence
    if place is None:
        return greedy
    common = [*prompt, *greedy.trainer[:place]]
    own_scores, engine_scores = trainer.score([[*common, greedy.trainer[place]], [*common, engine_tokens[place]]])
    return replace(greedy, gap=own_scores[-1] - engine_scores[-1])
