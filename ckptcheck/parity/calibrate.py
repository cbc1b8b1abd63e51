"""The floor of a model: how far logprobs of the same tokens under the same weights are apart, whoever computes them.

Every side is measured against itself, repeated, in batches and by its other path, and then against the other side. A gap later on
means something where it is a multiple of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptcheck.engines.base import Engine
from ckptcheck.engines.sampling import Sampling
from ckptcheck.errors import CkptcheckError
from ckptcheck.metrics.floor import Floor, write
from ckptcheck.metrics.gap import Gap
from ckptcheck.parity.gap import metrics
from ckptcheck.report import Section
from ckptcheck.trainers.base import Trainer

Tokens = tuple[int, ...]
TITLES = {
    "engine-repeat": "the engine, twice the same",
    "engine-batch": "the engine, one by one and all at once",
    "engine-decode": "the engine, decoding and prefill",
    "trainer-repeat": "the trainer, twice the same",
    "trainer-batch": "the trainer, one by one and all at once",
    "trainer-engine": "the trainer and the engine",
}


@dataclass(frozen=True)
class Noise:
    """gaps: name → how far apart under the same weights (see TITLES), as far as both sides were there.

    lost: comparisons that gave no number: a logprob was not finite, or there was none.
    """

    gaps: dict[str, Gap]
    lost: tuple[str, ...] = ()

    def section(self, of: str = "this model") -> Section:
        """Return the table. of: whose floor it is."""
        rows = tuple(
            (TITLES[name], each.tokens, each.mult_prob_error, each.abs_mean, each.abs_max, each.k3)
            for name, each in self.gaps.items()
        )
        columns = ("same weights", "tokens", "mult_prob_error", "mean |Δ|", "largest |Δ|", "k3")
        return Section(f"The floor of {of}", columns, rows)

    def write(self, path: Path, **about: Any) -> None:
        """Write a floor file: the largest of every metric. Raises CkptcheckError where a comparison gave no number."""
        if self.lost or not self.gaps:
            what = f" of {TITLES[self.lost[0]]}" if self.lost else ""
            raise CkptcheckError(f"no floor could be measured: logprobs{what} are not finite, or there are none")
        write(Floor.of({TITLES[name]: each for name, each in self.gaps.items()}, **about), path)


def calibrate(
    engine: Engine | None,
    trainer: Trainer | None,
    prompts: Sequence[Tokens],
    *,
    response: int = 32,
    batch: int = 8,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> Noise:
    """Measure. prompts: answered by the engine at temperature 1, or by the trainer where there is no engine.

    The engine decodes the very same tokens again (forced), so that no difference comes from another choice.
    """
    found: dict[str, Gap | None] = {}
    sequences, starts = _sampled(engine, trainer, prompts, response, seed, say)
    decoded: list[tuple[float, ...]] = []
    if engine is not None:
        say("the engine against itself")
        alone = [_followed(engine, [tokens], start)[0] for tokens, start in zip(sequences, starts, strict=True)]
        again = [_followed(engine, [tokens], start)[0] for tokens, start in zip(sequences, starts, strict=True)]
        engine.reset_prefix_cache()
        pairs = list(zip(sequences, starts, strict=True))
        for begin in range(0, len(pairs), batch):
            decoded += _together(engine, pairs[begin : begin + batch])
        prefill = [score.prompt[start - 1 :] for score, start in zip(engine.score(sequences), starts, strict=True)]
        found["engine-repeat"] = metrics(alone, again)
        found["engine-batch"] = metrics(alone, decoded)
        found["engine-decode"] = metrics(alone, prefill)
        decoded = alone
    if trainer is not None:
        say("the trainer against itself")
        single = [trainer.score([tokens])[0][start - 1 :] for tokens, start in zip(sequences, starts, strict=True)]
        twice = [trainer.score([tokens])[0][start - 1 :] for tokens, start in zip(sequences, starts, strict=True)]
        longest = max(map(len, sequences))
        padded = [(*tokens, *tokens)[:longest] for tokens in sequences[:1]]  # the others are padded to it
        together = trainer.padded([*sequences, *padded])[: len(sequences)]
        found["trainer-repeat"] = metrics(single, twice)
        found["trainer-batch"] = metrics(
            single, [each[start - 1 :] for each, start in zip(together, starts, strict=True)]
        )
        if engine is not None:
            found["trainer-engine"] = metrics(decoded, single)
    return Noise(
        {name: each for name, each in found.items() if each is not None},
        tuple(name for name, each in found.items() if each is None),
    )


def _sampled(
    engine: Engine | None,
    trainer: Trainer | None,
    prompts: Sequence[Tokens],
    response: int,
    seed: int,
    say: Callable[[str], None],
) -> tuple[list[Tokens], list[int]]:
    say("responses to measure with")
    if engine is not None:
        asked = [Sampling(max_tokens=response, seed=seed + place, ignore_eos=True) for place in range(len(prompts))]
        made: Sequence[Sequence[int]] = [each.tokens for each in engine.generate(prompts, asked)]
    elif trainer is not None:
        made = trainer.sample(prompts, response, seed=seed)
    else:
        made = [() for _ in prompts]
    return [(*prompt, *tokens) for prompt, tokens in zip(prompts, made, strict=True)], [
        len(prompt) for prompt in prompts
    ]


def _followed(engine: Engine, sequences: Sequence[Tokens], start: int) -> list[tuple[float, ...]]:
    engine.reset_prefix_cache()
    return engine.follow(sequences, start)


def _together(engine: Engine, group: Sequence[tuple[Tokens, int]]) -> list[tuple[float, ...]]:
    """Decode sequences at once; those whose prompts are shorter begin to be forced where the shortest one ends."""
    first = min(start for _, start in group)
    found = engine.follow([tokens for tokens, _ in group], first)
    return [values[start - first :] for values, (_, start) in zip(found, group, strict=True)]
