"""What both sides score after the cold load and after every sync: the same inputs every time, so that the scores compare."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.open_tokenizer import read_tokenizer
from ckptcheck.checkpoint.sandbox import run_sandboxed
from ckptcheck.errors import EvidenceError
from ckptcheck.linter.rule import Skip
from ckptcheck.live.refit.observations import CacheProbe, GreedyText, Scoring
from ckptcheck.live.runtime.engines.base import Engine, SequenceScores
from ckptcheck.live.runtime.engines.capabilities import why_not_forced
from ckptcheck.live.runtime.engines.sizing import DEFAULT_CONTEXT_LEN
from ckptcheck.live.runtime.trainers.base import Trainer

if TYPE_CHECKING:
    from ckptcheck.checkpoint.source import Source

LENGTH = 48
"""Tokens of the shortest scoring sequence."""
SPARE = 4
"""Tokens of the model's context that stay free: sequences differ in length by two, and an engine adds one when it scores."""
LEAD = 16
"""Tokens of a sequence that serve as the prompt if there is no tokenizer."""
PROMPT = "The capital of France is Paris, and the capital of Italy is"
TOKENIZER = "tokenizer.json"
SECONDS, MEMORY = 20, 4 << 30


class TrialTokenizer:
    """Encodes a prompt that means something, and decodes what the model adds. All results are empty if no tokenizer loads.

    A checkpoint's tokenizer.json is untrusted, so the child process of `checkpoint.sandbox` loads it.
    """

    def __init__(self, source: Source | None = None) -> None:
        self._raw = b""
        if source is not None and TOKENIZER in source.files and source.files[TOKENIZER].outside_link is None:
            self._raw = read_tokenizer(source)

    def encode_prompt(self, vocabulary: int) -> tuple[int, ...]:
        """Return the ids of the prompt, () if any of them is not below `vocabulary`."""
        ids: list[int] = next((line["ids"] for line in self._ask(encode=PROMPT) if "ids" in line), [])
        return tuple(ids) if all(0 <= token < vocabulary for token in ids) else ()

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Return each sequence of ids as text, "" if it cannot be decoded."""
        texts = [line["text"] for line in self._ask(decode=[list(ids) for ids in sequences]) if "text" in line]
        return texts if len(texts) == len(sequences) else [""] * len(sequences)

    def _ask(self, **job: Any) -> Sequence[dict[str, Any]]:
        if not self._raw:
            return ()
        try:
            return run_sandboxed("tokenizer", self._raw, seconds=SECONDS, memory=MEMORY, **job).lines
        except (Skip, EvidenceError):  # a trial needs no text
            return ()


@dataclass(frozen=True)
class ScoringInputs:
    """The token sequences of one trial."""

    sequences: tuple[tuple[int, ...], ...]
    """Sequences that both sides score."""
    probe: tuple[int, ...]
    """Sequence that tests the prefix cache, () if the engine has none."""
    prompt: tuple[int, ...]
    """Prompt that both sides continue greedily."""
    decode: int
    """Number of tokens to decode; 0 leaves decoding out."""
    text: TrialTokenizer

    @classmethod
    def for_trial(
        cls, vocabulary: int, block: int, text: TrialTokenizer, decode: int, length: int = DEFAULT_CONTEXT_LEN
    ) -> ScoringInputs:
        """Choose the inputs of a trial.

        vocabulary: rows of the embedding. block: tokens that the prefix cache keeps together, or 0. length: tokens that the
        model has room for. For a small model everything is shorter, and there is no probe if the cache could not keep it.
        """
        decode = min(decode, max(1, length // 4))
        room = max(1, length - decode - SPARE)
        sequences = scoring_sequences(vocabulary, length=min(LENGTH, room))
        probe = cache_probe_sequence(vocabulary, block)[: length - SPARE] if block else ()
        prompt = tuple(text.encode_prompt(vocabulary)) or sequences[0][:LEAD]
        return cls(sequences, probe if len(probe) > block else (), prompt[:room], decode, text)

    def score_engine(self, engine: Engine) -> tuple[SequenceScores, ...]:
        """Have the engine score the sequences and continue them greedily."""
        return tuple(engine.score(self.sequences, decode=self.decode))

    def fill_cache(self, engine: Engine) -> None:
        """Fill the prefix cache with keys and values of the weights before the sync."""
        if self.probe:
            engine.score([self.probe], decode=2)

    def score_cache_probe(self, engine: Engine) -> SequenceScores | None:
        """Have the engine score the sequence that tests the prefix cache; None if it has no cache."""
        return engine.score([self.probe], decode=2)[0] if self.probe else None

    def score_both_sides(
        self,
        engine: Engine,
        trainer: Trainer,
        after: int,
        cold: Sequence[SequenceScores],
        cold_probe: SequenceScores | None = None,
    ) -> Scoring:
        """Score on both sides. The cache probe comes first, before anything else fills the cache.

        after: number of the sync before, 0 for the cold load. cold, cold_probe: scores of a cold load of the same weights.
        """
        cache_probe = None
        if self.probe and after > 1:
            cached = engine.score([self.probe], decode=2)[0]
            engine.reset_prefix_cache()
            cache_probe = CacheProbe(cached, engine.score([self.probe], decode=2)[0], cold_probe)
        # only the probe is about what the cache keeps of the old weights
        if after:
            engine.reset_prefix_cache()
        trainer_scores, trainer_repeat = (tuple(trainer.score(self.sequences)) for _ in range(2))
        return Scoring(
            after_sync=after,
            sequences=self.sequences,
            engine=self.score_engine(engine) if after else tuple(cold),
            cold=tuple(cold),
            trainer=trainer_scores,
            trainer_repeat=trainer_repeat,
            cache_probe=cache_probe,
            forced_decode=self._force_decode(engine),
            greedy_text=self._decode_greedily(engine, trainer),
        )

    def _force_decode(self, engine: Engine) -> tuple[tuple[float, ...], ...]:
        """Have the engine decode the last tokens of the sequences; () if it cannot, or is not to."""
        if not self.decode or why_not_forced(engine.info):
            return ()
        begin = max(1, min(map(len, self.sequences)) - self.decode)
        return tuple(engine.score_by_decode(self.sequences, begin))

    def _decode_greedily(self, engine: Engine, trainer: Trainer) -> GreedyText | None:
        if not self.decode:
            return None
        engine.reset_prefix_cache()
        greedy = decode_both(engine, trainer, self.prompt, self.decode)
        engine_text, trainer_text = self.text.decode([greedy.engine, greedy.trainer])
        return replace(greedy, engine_text=engine_text, trainer_text=trainer_text)


def scoring_sequences(vocabulary: int, *, number: int = 3, length: int = LENGTH) -> tuple[tuple[int, ...], ...]:
    """Return the token sequences that both sides score: random ids, the same in every run.

    vocabulary: rows of the embedding. The first few ids are left out, because they may be padding or control tokens.
    number: how many sequences. length: tokens of the first; each one has one token more than the one before.
    """
    lowest = min(8, vocabulary // 4)
    source = random.Random(0)
    return tuple(tuple(source.randrange(lowest, vocabulary) for _ in range(length + index)) for index in range(number))


def cache_probe_sequence(vocabulary: int, block: int) -> tuple[int, ...]:
    """Return a token sequence that is long enough for the prefix cache to keep it.

    vocabulary: rows of the embedding. block: tokens that the engine caches together.
    """
    source = random.Random(1)
    lowest = min(8, vocabulary // 4)
    return tuple(source.randrange(lowest, vocabulary) for _ in range(2 * block + 7))


def decode_both(engine: Engine, trainer: Trainer, prompt: Sequence[int], number: int) -> GreedyText:
    """Let both sides decode. Where they differ, the trainer scores both continuations: in a tie neither is wrong."""
    engine_tokens = engine.score([prompt], decode=number)[0].decoded_tokens
    greedy = GreedyText(tuple(prompt), engine_tokens, trainer.decode_greedy(prompt, number))
    place = greedy.first_divergence
    if place is None:
        return greedy
    common = [*prompt, *greedy.trainer[:place]]
    own_scores, engine_scores = trainer.score([[*common, greedy.trainer[place]], [*common, engine_tokens[place]]])
    return replace(greedy, gap=own_scores[-1] - engine_scores[-1])
