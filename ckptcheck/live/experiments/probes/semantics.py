"""Probes which kind of logprobs the engine reports: raw, divided by the temperature, or with penalties, top-k and top-p too.

The probe computes each kind from the trainer's logits and compares it with the engine's logprobs, at the sampling of the job. It
also searches for the temperature that fits best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log
from typing import TYPE_CHECKING, Any, Literal

from ckptcheck.linter.report import Section
from ckptcheck.live.experiments.probes.environment import ProbeEnvironment, ProbeRun
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.engines.sampling import Sampling
from ckptcheck.rollouts.gap_summary import LOOSE, GapSummary, summarize_gap

if TYPE_CHECKING:
    from numpy.typing import NDArray

Meaning = Literal["raw", "temperature", "processed"]
TOKENS, FEW = 24, 3
"""Tokens of a response, and how many prompts the probe samples from."""
SHIFTS = (-1, 0, 1)
SIDES = 2
"""Two sides that round equally are at most this many times as far apart as each of them is from exact arithmetic."""
EDGE = 0.8
"""If the engine truncates as requested, the trainer's truncation has to keep at least this share of the sampled tokens too."""


@dataclass(frozen=True)
class SemanticsResult:
    """The engine's logprobs of sampled responses, compared with the trainer's."""

    sampling: Sampling
    """The sampling that the probe requested."""
    gaps: dict[Meaning, GapSummary]
    """Kind of logprobs → the gap between the engine's logprobs and those that the trainer computes for this kind."""
    best_temperature: float
    """The temperature that brings the trainer's logprobs nearest."""
    remaining_gap: float
    """Mean |Δ| in nats at that temperature."""
    shifts: dict[int, float]
    """Shift (-1, 0, 1) → mean |Δ| between the engine's logprob of a token and the trainer's of the token that far after it."""
    rounding: GapSummary | None = None
    """The gap between the trainer's logprobs in its own dtype and in float32, of the kind that fits best; None where it computes
    in float32, and where the gap is small enough."""

    @property
    def is_rounding(self) -> bool:
        """Whether the gap is no larger than two sides have that each round as the trainer does."""
        return self.rounding is not None and self.gaps[self.meaning].mean <= SIDES * self.rounding.mean

    @property
    def meaning(self) -> Meaning:
        """The kind that fits best; of equally good ones the simplest."""
        return min(self.gaps, key=lambda name: (round(self.gaps[name].mean, 5), list(self.gaps).index(name)))

    @property
    def shift(self) -> int:
        """By how many tokens the two sides are shifted: 0 unless they agree much better one token away."""
        best = min(self.shifts, key=lambda by: self.shifts[by])
        return best if self.shifts[best] < self.shifts[0] / 3 else 0

    @property
    def section(self) -> Section:
        """The table."""
        titles = {
            "raw": "the model's own",
            "temperature": "divided by T",
            "processed": "divided by T, cut by top-k and top-p",
        }
        if has_penalties(self.sampling):
            titles["processed"] = "penalised, divided by T, cut by top-k and top-p"
        gaps = {titles[name]: gap for name, gap in self.gaps.items()}
        if self.rounding is not None:
            gaps["the trainer against its own float32"] = self.rounding
        rows = tuple((name, gap.mult_prob_error, gap.mean, gap.largest) for name, gap in gaps.items())
        title = f"What the engine's logprobs are, at {self.sampling_label}: T {self.best_temperature:.3g} fits best"
        return Section(title, ("held against logprobs", "mult_prob_error", "mean |Δ|", "largest |Δ|"), rows)

    @property
    def sampling_label(self) -> str:
        """``T 0.7, top-p 1, top-k 0``."""
        label = f"T {self.sampling.temperature:g}, top-p {self.sampling.top_p:g}, top-k {self.sampling.top_k}"
        if has_penalties(self.sampling):
            label += f", presence penalty {self.sampling.presence_penalty:g}"
            label += f", frequency penalty {self.sampling.frequency_penalty:g}"
            if self.sampling.repetition_penalty != 1:
                label += f", repetition penalty {self.sampling.repetition_penalty:g}"
        return label


def compare_meanings(environment: ProbeEnvironment) -> ProbeRun:
    """Sample as the job does, on an engine that reports its default kind of logprobs."""
    engine = yield environment.setup
    default_mode = engine.info.facts.get("stock_logprobs", "raw")
    # ckptcheck starts an engine with raw logprobs by default
    if environment.setup.switches.logprobs is None and default_mode != "raw":
        engine = yield environment.setup.with_switches(logprobs=default_mode)
    return _score_sampled(environment, engine, environment.sampling)


def has_penalties(sampling: Sampling) -> bool:
    """Return whether the sampling has a penalty."""
    return sampling.presence_penalty != 0 or sampling.frequency_penalty != 0 or sampling.repetition_penalty != 1


def truncates_vocabulary(sampling: Sampling) -> bool:
    """Return whether the sampling truncates the vocabulary."""
    return sampling.top_p < 1 or sampling.top_k > 0


def _score_sampled(environment: ProbeEnvironment, engine: Engine, sampling: Sampling) -> SemanticsResult:
    """Sample responses, and compute each kind of logprobs from the trainer's logits."""
    from safetensors.numpy import load_file

    from ckptcheck.rollouts.metrics.sampling_distribution import penalize

    trainer = environment.trainer()
    engine.reset_prefix_cache()
    prompts = list(environment.prompts[:FEW])
    samplings = [replace(sampling, max_tokens=TOKENS, seed=index, ignore_eos=True) for index in range(len(prompts))]
    generations = engine.generate(prompts, samplings)
    sequences = [(*prompt, *generation.tokens) for prompt, generation in zip(prompts, generations, strict=True)]
    # a repetition penalty depends on the sign of logits, which logprobs do not show
    options = {"raw": True} if sampling.repetition_penalty != 1 else {}
    tables_by_index = load_file(trainer.score_full_vocab(sequences, environment.folder, **options))
    tables = [tables_by_index[str(index)][len(prompt) - 1 :] for index, prompt in enumerate(prompts)]
    tokens, reported = (
        [generation.tokens for generation in generations],
        [generation.logprobs for generation in generations],
    )
    temperature = sampling.temperature or 1.0
    raw, tempered = _logprobs_of(tables, tokens, 1.0), _logprobs_of(tables, tokens, temperature)
    penalties = sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty
    penalized = [
        penalize(table, row, *penalties, prompt) for table, row, prompt in zip(tables, tokens, prompts, strict=True)
    ]
    truncated = _logprobs_of(penalized, tokens, temperature, sampling.top_p, sampling.top_k)
    gaps: dict[Meaning, GapSummary] = {
        "raw": summarize_gap(reported, raw),
        "temperature": summarize_gap(reported, tempered),
        "processed": _summarize_kept_tokens(reported, truncated),
    }
    best_temperature, remaining_gap = fit_best_temperature(tables, tokens, reported)
    nearest = raw if gaps["raw"].mean <= gaps["temperature"].mean else tempered
    result = SemanticsResult(
        sampling,
        gaps,
        best_temperature,
        remaining_gap,
        {shift: compute_shifted_gap(reported, nearest, shift) for shift in SHIFTS},
    )
    if environment.dtype == "float32" or gaps[result.meaning].mult_prob_error <= LOOSE:
        return result
    exact_by_index = load_file(environment.trainer("float32").score_full_vocab(sequences, environment.folder))
    exact_tables = [exact_by_index[str(index)][len(prompt) - 1 :] for index, prompt in enumerate(prompts)]
    arguments: dict[Meaning, tuple[Any, ...]] = {
        "raw": (1.0,),
        "temperature": (temperature,),
        "processed": (temperature, sampling.top_p, sampling.top_k),
    }
    own, exact = (_logprobs_of(each, tokens, *arguments[result.meaning]) for each in (tables, exact_tables))
    return replace(result, rounding=_summarize_kept_tokens(own, exact))


def _summarize_kept_tokens(reported: Sequence[Sequence[float]], truncated: Sequence[Sequence[float]]) -> GapSummary:
    """Summarize the gap over tokens that both truncations keep; rounding drops a few at the edge of top-k."""
    pairs = [
        [
            (engine_logprob, trainer_logprob)
            for engine_logprob, trainer_logprob in zip(engine_logprobs, trainer_logprobs, strict=True)
            if engine_logprob > -inf and trainer_logprob > -inf
        ]
        for engine_logprobs, trainer_logprobs in zip(reported, truncated, strict=True)
    ]
    if sum(map(len, pairs)) < EDGE * sum(map(len, reported)):
        return summarize_gap(reported, truncated)
    return summarize_gap(
        [[engine_logprob for engine_logprob, _ in row] for row in pairs],
        [[trainer_logprob for _, trainer_logprob in row] for row in pairs],
    )


def compute_shifted_gap(reported: Sequence[Sequence[float]], own: Sequence[Sequence[float]], by: int) -> float:
    """Return the mean |Δ| between position i of `reported` and position i + `by` of `own`."""
    low, high = max(0, -by), max(0, by)
    pairs = [
        (engine_logprobs[low : len(engine_logprobs) - high], trainer_logprobs[high : len(trainer_logprobs) - low])
        for engine_logprobs, trainer_logprobs in zip(reported, own, strict=True)
    ]
    return summarize_gap(
        [engine_logprobs for engine_logprobs, _ in pairs], [trainer_logprobs for _, trainer_logprobs in pairs]
    ).mean


def _logprobs_of(
    tables: Sequence[NDArray[Any]],
    tokens: Sequence[Sequence[int]],
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
) -> list[list[float]]:
    """Return the logprobs of the response tokens under a sampling.

    tables: for each sequence, raw logprobs [tokens, vocabulary]. tokens: for each sequence, the ids of its response.
    """
    import numpy as np

    from ckptcheck.rollouts.metrics.sampling_distribution import processed

    logprobs = []
    for table, sampled in zip(tables, tokens, strict=True):
        scaled = processed(np.asarray(table, np.float64), temperature, top_p, top_k)
        logprobs.append(scaled[np.arange(len(sampled)), list(sampled)].tolist())
    return logprobs


def fit_best_temperature(
    whole: Sequence[NDArray[Any]], tokens: Sequence[Sequence[int]], reported: Sequence[Sequence[float]]
) -> tuple[float, float]:
    """Return the temperature in [0.05, 20] whose logprobs are nearest, and the mean |Δ| that remains: golden section over log T.

    whole: for each sequence, the trainer's raw logprobs [tokens, vocabulary]. tokens: the ids of each response. reported: the
    engine's logprobs of each response.
    """

    def gap_at(point: float) -> float:
        return summarize_gap(reported, _logprobs_of(whole, tokens, exp(point))).mean

    low, high = log(0.05), log(20)
    grid = [low + (high - low) * step / 12 for step in range(13)]
    values = [gap_at(point) for point in grid]
    best = values.index(min(values))
    if values[best] == inf:
        return 1.0, inf
    low, high = grid[max(0, best - 1)], grid[min(12, best + 1)]
    ratio = (5**0.5 - 1) / 2
    for _ in range(24):
        lower, upper = high - ratio * (high - low), low + ratio * (high - low)
        if gap_at(lower) <= gap_at(upper):
            high = upper
        else:
            low = lower
    point = (low + high) / 2
    return exp(point), gap_at(point)
