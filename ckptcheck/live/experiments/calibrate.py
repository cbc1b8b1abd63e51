"""Measures the floor of a model: how much the logprobs of the same tokens differ with equal weights.

Each side is compared with itself (repeated, in batches, by its other path) and then with the other side. A later gap means
something if it is a multiple of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import Section
from ckptcheck.live.experiments.scoring import ResponseEngine, decode_again
from ckptcheck.live.runtime.engines.sampling import Sampling
from ckptcheck.live.runtime.trainers.base import Trainer
from ckptcheck.rollouts.gap_summary import Runs, compute_run_metrics
from ckptcheck.rollouts.metrics.logprob_metrics import LogprobMetrics
from ckptcheck.rollouts.metrics.noise_floor import NoiseFloor, write_noise_floor

Tokens = tuple[int, ...]
COMPARISONS = {
    "engine-repeat": ("the engine, twice the same", "decoded", "decoded again"),
    "engine-batch": ("the engine, one by one and all at once", "decoded", "decoded together"),
    "engine-decode": ("the engine, decoding and prefill", "decoded", "prefilled"),
    "trainer-repeat": ("the trainer, twice the same", "scored", "scored again"),
    "trainer-batch": ("the trainer, one by one and all at once", "scored", "scored together"),
    "trainer-engine": ("the trainer and the engine", "decoded", "scored"),
}
"""Comparison → its title and the two ways to compute the same logprobs, see `Calibration`."""
TITLES = {name: title for name, (title, *_) in COMPARISONS.items()}


@dataclass(frozen=True)
class FloorMeasurement:
    """The comparisons of one calibration."""

    metrics: dict[str, LogprobMetrics]
    """Name of a comparison (see `TITLES`) → its metrics."""
    failed_comparisons: tuple[str, ...] = ()
    """Comparisons that gave no number: a logprob was not finite, or there was none."""

    def section(self, of: str = "this model") -> Section:
        """Return the table. of: the model or pair whose floor it is."""
        rows = tuple(
            (TITLES[name], metrics.tokens, metrics.mult_prob_error, metrics.abs_mean, metrics.abs_max, metrics.k3)
            for name, metrics in self.metrics.items()
        )
        columns = ("same weights", "tokens", "mult_prob_error", "mean |Δ|", "largest |Δ|", "k3")
        return Section(f"The floor of {of}", columns, rows)

    def write(self, path: Path, **about: Any) -> None:
        """Write a floor file with the largest value of every metric. Raises CkptcheckError where a comparison gave no number."""
        if self.failed_comparisons or not self.metrics:
            clause = f" of {TITLES[self.failed_comparisons[0]]}" if self.failed_comparisons else ""
            raise CkptcheckError(f"no floor could be measured: logprobs{clause} are not finite, or there are none")
        write_noise_floor(
            NoiseFloor.of({TITLES[name]: metrics for name, metrics in self.metrics.items()}, **about), path
        )


def calibrate(
    engine: ResponseEngine | None,
    trainer: Trainer | None,
    prompts: Sequence[Tokens],
    *,
    response: int = 32,
    batch: int = 8,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> FloorMeasurement:
    """Make all comparisons that the available sides allow.

    prompts: the engine answers them at temperature 1, or the trainer if there is no engine. batch: how many responses the engine
    decodes together.
    """
    say("responses to measure with")
    calibration = Calibration(engine, trainer, prompts, response=response, batch=batch, seed=seed)
    found = {
        name: calibration.compare(*ways, say=say)
        for name, (_, *ways) in COMPARISONS.items()
        if all(way in calibration.ways for way in ways)
    }
    return FloorMeasurement(
        {name: metrics for name, metrics in found.items() if metrics is not None},
        tuple(name for name, metrics in found.items() if metrics is None),
    )


class Calibration:
    """The responses of one calibration, and the ways to compute their logprobs.

    The engine decodes the very same tokens again (forced), so that no difference comes from other tokens.
    """

    def __init__(
        self,
        engine: ResponseEngine | None,
        trainer: Trainer | None,
        prompts: Sequence[Tokens],
        *,
        response: int,
        batch: int,
        seed: int,
    ) -> None:
        responses = _draw_responses(engine, trainer, prompts, response, seed)
        self._sequences = [(*prompt, *tokens) for prompt, tokens in zip(prompts, responses, strict=True)]
        self._starts = [len(prompt) for prompt in prompts]
        self.ways: dict[str, Callable[[], Runs]] = {}
        """Name → the function that computes the logprobs of each response."""
        if engine is not None:
            self.ways |= {
                "decoded": partial(self._decode_alone, engine),
                "decoded again": partial(self._decode_alone, engine),
                "decoded together": partial(self._decode_together, engine, batch),
                "prefilled": partial(self._prefill, engine),
            }
        if trainer is not None:
            self.ways |= {
                "scored": partial(self._score_alone, trainer),
                "scored again": partial(self._score_alone, trainer),
                "scored together": partial(self._score_together, trainer),
            }
        self._computed: dict[str, Runs] = {}

    def compare(self, one: str, other: str, *, say: Callable[[str], None]) -> LogprobMetrics | None:
        """Compare two ways; None where logprobs are not finite, or there are none."""
        for way in (one, other):
            if way not in self._computed:
                say(f"logprobs: {way}")
                self._computed[way] = self.ways[way]()
        return compute_run_metrics(self._computed[one], self._computed[other])

    def _decode_alone(self, engine: ResponseEngine) -> Runs:
        decoded = []
        for tokens, start in zip(self._sequences, self._starts, strict=True):
            engine.reset_prefix_cache()
            decoded.append(engine.score_by_decode([tokens], start)[0])
        return decoded

    def _decode_together(self, engine: ResponseEngine, batch: int) -> Runs:
        engine.reset_prefix_cache()
        return decode_again(engine, self._sequences, self._starts, batch)

    def _prefill(self, engine: ResponseEngine) -> Runs:
        return self._of_responses([score.prompt_logprobs for score in engine.score(self._sequences)])

    def _score_alone(self, trainer: Trainer) -> Runs:
        return self._of_responses([trainer.score([tokens])[0] for tokens in self._sequences])

    def _score_together(self, trainer: Trainer) -> Runs:
        longest = max(map(len, self._sequences))
        # the trainer pads the other sequences to the length of this one
        longest_sequence = [(*tokens, *tokens)[:longest] for tokens in self._sequences[:1]]
        scores = trainer.score_batched([*self._sequences, *longest_sequence])
        return self._of_responses(scores[: len(self._sequences)])

    def _of_responses(self, scores: Sequence[Sequence[float]]) -> Runs:
        return [values[start - 1 :] for values, start in zip(scores, self._starts, strict=True)]


def _draw_responses(
    engine: ResponseEngine | None, trainer: Trainer | None, prompts: Sequence[Tokens], response: int, seed: int
) -> Sequence[Sequence[int]]:
    if engine is not None:
        samplings = [Sampling(max_tokens=response, seed=seed + place, ignore_eos=True) for place in range(len(prompts))]
        return [generation.tokens for generation in engine.generate(prompts, samplings)]
    if trainer is not None:
        return trainer.sample(prompts, response, seed=seed)
    return [() for _ in prompts]
