"""Measures the floor of a model: how much the logprobs of the same tokens differ with equal weights.

Each side is compared with itself (repeated, in batches, by its other path) and then with the other side. A later gap means
something if it is a multiple of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import Section
from ckptcheck.live.experiments.trainer_as_engine import ResponseEngine
from ckptcheck.live.runtime.engines.sampling import Sampling
from ckptcheck.live.runtime.trainers.base import Trainer
from ckptcheck.rollouts.gap_summary import compute_run_metrics
from ckptcheck.rollouts.metrics.logprob_metrics import LogprobMetrics
from ckptcheck.rollouts.metrics.noise_floor import NoiseFloor, write_noise_floor

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
    """Measure all comparisons that the available sides allow.

    prompts: the engine answers them at temperature 1, or the trainer if there is no engine. The engine decodes the very same
    tokens again (forced), so that no difference comes from other tokens.
    """
    comparisons: dict[str, LogprobMetrics | None] = {}
    sequences, starts = _draw_responses(engine, trainer, prompts, response, seed, say)
    decoded: list[tuple[float, ...]] = []
    if engine is not None:
        say("the engine against itself")
        decoded_alone = [
            _decode_uncached(engine, [tokens], start)[0] for tokens, start in zip(sequences, starts, strict=True)
        ]
        decoded_again = [
            _decode_uncached(engine, [tokens], start)[0] for tokens, start in zip(sequences, starts, strict=True)
        ]
        engine.reset_prefix_cache()
        pairs = list(zip(sequences, starts, strict=True))
        for begin in range(0, len(pairs), batch):
            decoded += _decode_group(engine, pairs[begin : begin + batch])
        prefill = [
            score.prompt_logprobs[start - 1 :] for score, start in zip(engine.score(sequences), starts, strict=True)
        ]
        comparisons["engine-repeat"] = compute_run_metrics(decoded_alone, decoded_again)
        comparisons["engine-batch"] = compute_run_metrics(decoded_alone, decoded)
        comparisons["engine-decode"] = compute_run_metrics(decoded_alone, prefill)
        decoded = decoded_alone
    if trainer is not None:
        say("the trainer against itself")
        scored_alone = [
            trainer.score([tokens])[0][start - 1 :] for tokens, start in zip(sequences, starts, strict=True)
        ]
        scored_again = [
            trainer.score([tokens])[0][start - 1 :] for tokens, start in zip(sequences, starts, strict=True)
        ]
        longest = max(map(len, sequences))
        # the trainer pads the other sequences to the length of this one
        longest_sequence = [(*tokens, *tokens)[:longest] for tokens in sequences[:1]]
        scored_together = trainer.score_batched([*sequences, *longest_sequence])[: len(sequences)]
        comparisons["trainer-repeat"] = compute_run_metrics(scored_alone, scored_again)
        comparisons["trainer-batch"] = compute_run_metrics(
            scored_alone, [values[start - 1 :] for values, start in zip(scored_together, starts, strict=True)]
        )
        if engine is not None:
            comparisons["trainer-engine"] = compute_run_metrics(decoded, scored_alone)
    return FloorMeasurement(
        {name: metrics for name, metrics in comparisons.items() if metrics is not None},
        tuple(name for name, metrics in comparisons.items() if metrics is None),
    )


def _draw_responses(
    engine: ResponseEngine | None,
    trainer: Trainer | None,
    prompts: Sequence[Tokens],
    response: int,
    seed: int,
    say: Callable[[str], None],
) -> tuple[list[Tokens], list[int]]:
    say("responses to measure with")
    if engine is not None:
        samplings = [Sampling(max_tokens=response, seed=seed + place, ignore_eos=True) for place in range(len(prompts))]
        responses: Sequence[Sequence[int]] = [generation.tokens for generation in engine.generate(prompts, samplings)]
    elif trainer is not None:
        responses = trainer.sample(prompts, response, seed=seed)
    else:
        responses = [() for _ in prompts]
    return [(*prompt, *tokens) for prompt, tokens in zip(prompts, responses, strict=True)], [
        len(prompt) for prompt in prompts
    ]


def _decode_uncached(engine: ResponseEngine, sequences: Sequence[Tokens], start: int) -> list[tuple[float, ...]]:
    engine.reset_prefix_cache()
    return engine.score_by_decode(sequences, start)


def _decode_group(engine: ResponseEngine, group: Sequence[tuple[Tokens, int]]) -> list[tuple[float, ...]]:
    """Decode sequences in one batch. Forcing begins where the shortest prompt ends, so the rest of longer prompts is forced too."""
    first = min(start for _, start in group)
    logprobs = engine.score_by_decode([tokens for tokens, _ in group], first)
    return [values[start - first :] for values, (_, start) in zip(logprobs, group, strict=True)]
