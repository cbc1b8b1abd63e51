"""What both sides are asked after the cold load and after every sync: the same every time, so that answers can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ckptcheck.engines.base import Engine, Scores
from ckptcheck.engines.context import USUAL
from ckptcheck.refit import sequences
from ckptcheck.refit.floor import unforced
from ckptcheck.refit.speech import Speech, speech
from ckptcheck.refit.text import Text
from ckptcheck.refit.trace import Scoring
from ckptcheck.trainers.base import Trainer

SPARE = 4
"""Tokens of the model's context that are left free: sequences differ in length by two, and an engine adds one to what it scores."""
LEAD = 16
"""Tokens that are gone on from where there is no tokenizer to say a prompt in."""


@dataclass(frozen=True)
class Questions:
    """sequences: to score. probe: asks the prefix cache, () where the engine has none. prompt: to go on from; decode: by so many
    tokens. text: the tokenizer.
    """

    sequences: tuple[tuple[int, ...], ...]
    probe: tuple[int, ...]
    prompt: tuple[int, ...]
    decode: int
    text: Text

    @classmethod
    def of(cls, vocabulary: int, block: int, text: Text, decode: int, length: int = USUAL) -> Questions:
        """Make those of a trial. vocabulary: rows of the embedding; block: tokens that the prefix cache keeps together, or 0.

        length: tokens that the model has room for. Where these are few, all is shorter, and the cache is not asked what it could
        not keep.
        """
        decode = max(1, min(decode, length // 4))
        room = max(1, length - decode - SPARE)
        some = sequences.sequences(vocabulary, length=min(sequences.LENGTH, room))
        probe = sequences.probe(vocabulary, block)[: length - SPARE] if block else ()
        prompt = tuple(text.prompt(vocabulary)) or some[0][:LEAD]
        return cls(some, probe if len(probe) > block else (), prompt[:room], decode, text)

    def scores(self, engine: Engine) -> tuple[Scores, ...]:
        """Have the engine score the sequences, and go on greedily."""
        return tuple(engine.score(self.sequences, decode=self.decode))

    def warm(self, engine: Engine) -> None:
        """Fill the prefix cache with the old weights' keys and values."""
        if self.probe:
            engine.score([self.probe], decode=2)

    def asked(self, engine: Engine, trainer: Trainer, after: int, cold: Sequence[Scores]) -> Scoring:
        """Score on both sides; the cache is asked first, before anything else fills it.

        after: the number of the sync before, 0 for the cold load. cold: what a cold load of the same weights said.
        """
        warm: tuple[tuple[Scores, Scores], ...] = ()
        if self.probe and after > 1:
            kept = engine.score([self.probe], decode=2)[0]
            engine.reset_prefix_cache()
            warm = ((kept, engine.score([self.probe], decode=2)[0]),)
        if after:
            engine.reset_prefix_cache()  # what is left of the old weights is the probe's matter
        own, again = (tuple(trainer.score(self.sequences)) for _ in range(2))
        return Scoring(
            after=after,
            sequences=self.sequences,
            engine=self.scores(engine) if after else tuple(cold),
            cold=tuple(cold),
            trainer=own,
            again=again,
            warm=warm,
            forced=self._forced(engine),
            speech=self._speech(engine, trainer),
        )

    def _forced(self, engine: Engine) -> tuple[tuple[float, ...], ...]:
        """Have the engine decode the ends of the sequences; () where it cannot."""
        if unforced(engine.info):
            return ()
        begin = max(1, min(map(len, self.sequences)) - self.decode)
        return tuple(engine.follow(self.sequences, begin))

    def _speech(self, engine: Engine, trainer: Trainer) -> Speech:
        engine.reset_prefix_cache()
        said = speech(engine, trainer, self.prompt, self.decode)
        words = self.text.words([said.engine, said.trainer])
        return replace(said, engine_text=words[0], trainer_text=words[1])
