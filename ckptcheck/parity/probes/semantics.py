"""Of which distribution are the logprobs that the engine reports: the model's, or the one that it sampled from?

With the trainer's logits the answer can be computed: the logprobs are tried as raw, as divided by the temperature, and as cut by
top-k and top-p too; and the temperature is looked for that brings them nearest to what the engine said. That is done for what
the user's job samples with, and once more with top-k and top-p where it has neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log
from typing import TYPE_CHECKING, Any, Literal

from ckptcheck.engines.base import Engine
from ckptcheck.engines.sampling import Sampling
from ckptcheck.parity.gap import Gap, gap
from ckptcheck.parity.probes.bench import Bench, Probe
from ckptcheck.report import Section

if TYPE_CHECKING:
    from numpy.typing import NDArray

Meaning = Literal["raw", "temperature", "processed"]
TOKENS, FEW = 24, 3
SHIFTS = (-1, 0, 1)
USUAL, TOP_P, TOP_K = 0.7, 0.9, 20
"""Of the further round: at the job's temperature where that is one that tells something."""
EDGE = 0.8
"""Share of the sampled tokens that the trainer has to keep too if the engine cut as it was asked to."""


@dataclass(frozen=True)
class Round:
    """sampling: what was asked for. gaps: meaning → how far what was said is from what the trainer computes for it.

    solved: the temperature that closes the gap best, and the mean |Δ| that remains. shifts: the mean |Δ| where the engine's
    logprob of a token is held against the trainer's of the token before it, of itself, and of the one after it.
    """

    sampling: Sampling
    gaps: dict[Meaning, Gap]
    solved: float
    remains: float
    shifts: dict[int, float]

    @property
    def meaning(self) -> Meaning:
        """What fits best; where several do, the one that says least."""
        return min(self.gaps, key=lambda name: (round(self.gaps[name].mean, 5), list(self.gaps).index(name)))

    @property
    def shift(self) -> int:
        """By how many tokens the two sides are shifted: 0 unless they meet much better elsewhere."""
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
        rows = tuple((titles[name], each.mult_prob_error, each.mean, each.largest) for name, each in self.gaps.items())
        title = f"What the engine's logprobs are, at {self.asked}: T {self.solved:.3g} fits best"
        return Section(title, ("held against logprobs", "mult_prob_error", "mean |Δ|", "largest |Δ|"), rows)

    @property
    def asked(self) -> str:
        """``T 0.7, top-p 1, top-k 0``."""
        return f"T {self.sampling.temperature:g}, top-p {self.sampling.top_p:g}, top-k {self.sampling.top_k}"


@dataclass(frozen=True)
class SemanticsSeen:
    """own: with what the user's job samples with. cut: with top-k and top-p, the same round where the job has one of them."""

    own: Round
    cut: Round

    @property
    def rounds(self) -> tuple[Round, ...]:
        """Both, or the one."""
        return (self.own,) if self.cut is self.own else (self.own, self.cut)

    @property
    def sections(self) -> tuple[Section, ...]:
        """Their tables."""
        return tuple(each.section for each in self.rounds)


def probe(bench: Bench) -> Probe:
    """Sample as the user's job does, and with top-k and top-p, on an engine whose logprobs are those that it reports by itself."""
    engine = yield bench.setup
    stock = engine.info.facts.get("stock_logprobs", "raw")
    if bench.setup.switches.logprobs is None and stock != "raw":  # raw is how checks start an engine
        engine = yield bench.setup.having(logprobs=stock)
    sampling = bench.sampling
    own = _round(bench, engine, sampling)
    if cuts(sampling):
        return SemanticsSeen(own, own)
    heat = sampling.temperature if sampling.temperature not in (0.0, 1.0) else USUAL
    return SemanticsSeen(own, _round(bench, engine, replace(sampling, temperature=heat, top_p=TOP_P, top_k=TOP_K)))


def cuts(sampling: Sampling) -> bool:
    """Say whether anything is cut away before sampling."""
    return sampling.top_p < 1 or sampling.top_k > 0


def _round(bench: Bench, engine: Engine, sampling: Sampling) -> Round:
    """Have prompts answered, and compute what was said from the trainer's logits."""
    from safetensors.numpy import load_file

    trainer = bench.trainer()
    engine.reset_prefix_cache()
    prompts = list(bench.prompts[:FEW])
    asked = [replace(sampling, max_tokens=TOKENS, seed=place, ignore_eos=True) for place in range(len(prompts))]
    made = engine.generate(prompts, asked)
    sequences = [(*prompt, *each.tokens) for prompt, each in zip(prompts, made, strict=True)]
    tables = load_file(trainer.full(sequences, bench.folder))
    whole = [tables[str(place)][len(prompt) - 1 :] for place, prompt in enumerate(prompts)]
    tokens, said = [each.tokens for each in made], [each.logprobs for each in made]
    heat = sampling.temperature or 1.0
    raw, divided = _taken(whole, tokens, 1.0), _taken(whole, tokens, heat)
    cut = _taken(whole, tokens, heat, sampling.top_p, sampling.top_k)
    gaps: dict[Meaning, Gap] = {"raw": gap(said, raw), "temperature": gap(said, divided), "processed": _kept(said, cut)}
    solved, remains = solve(whole, tokens, said)
    nearest = raw if gaps["raw"].mean <= gaps["temperature"].mean else divided
    return Round(sampling, gaps, solved, remains, {by: shifted(said, nearest, by) for by in SHIFTS})


def _kept(said: Sequence[Sequence[float]], cut: Sequence[Sequence[float]]) -> Gap:
    """Compare where the trainer would have kept the token too; a few at the edge of top-k it cuts away by rounding."""
    pairs = [
        [(one, other) for one, other in zip(a, b, strict=True) if other > -inf] for a, b in zip(said, cut, strict=True)
    ]
    if sum(map(len, pairs)) < EDGE * sum(map(len, said)):
        return gap(said, cut)
    return gap([[one for one, _ in row] for row in pairs], [[other for _, other in row] for row in pairs])


def shifted(said: Sequence[Sequence[float]], own: Sequence[Sequence[float]], by: int) -> float:
    """Return the mean |Δ| where place i of one is held against place i + by of the other."""
    low, high = max(0, -by), max(0, by)
    pairs = [(one[low : len(one) - high], other[high : len(other) - low]) for one, other in zip(said, own, strict=True)]
    return gap([one for one, _ in pairs], [other for _, other in pairs]).mean


def _taken(
    whole: Sequence[NDArray[Any]], tokens: Sequence[Sequence[int]], heat: float, top_p: float = 1.0, top_k: int = 0
) -> list[list[float]]:
    """Return the logprobs of tokens. whole: raw logprobs [tokens, vocabulary] of each sequence."""
    import numpy as np

    from ckptcheck.metrics.processed import processed

    found = []
    for table, chosen in zip(whole, tokens, strict=True):
        scaled = processed(np.asarray(table, np.float64), heat, top_p, top_k)
        found.append(scaled[np.arange(len(chosen)), list(chosen)].tolist())
    return found


def solve(
    whole: Sequence[NDArray[Any]], tokens: Sequence[Sequence[int]], said: Sequence[Sequence[float]]
) -> tuple[float, float]:
    """Return the temperature in [0.05, 20] whose logprobs are nearest, and the mean |Δ| that remains: golden section over log T."""

    def far(point: float) -> float:
        return gap(said, _taken(whole, tokens, exp(point))).mean

    low, high = log(0.05), log(20)
    grid = [low + (high - low) * step / 12 for step in range(13)]
    values = [far(point) for point in grid]
    best = values.index(min(values))
    if values[best] == inf:
        return 1.0, inf
    low, high = grid[max(0, best - 1)], grid[min(12, best + 1)]
    ratio = (5**0.5 - 1) / 2
    for _ in range(24):
        one, other = high - ratio * (high - low), low + ratio * (high - low)
        if far(one) <= far(other):
            high = other
        else:
            low = one
    point = (low + high) / 2
    return exp(point), far(point)
