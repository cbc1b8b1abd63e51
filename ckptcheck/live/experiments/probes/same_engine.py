"""Probes whether an engine computes the same by decoding, in another set-up, and compiled (NeMo-RL's diagnostics 2 and 4).

Beside the gap of a compiled engine stands the floor: by how much eager mode differs from itself, between decoding and prefill and
from run to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ckptcheck.linter.report import Cell, Section
from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.probes.environment import ProbeEnvironment, ProbeRun
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.rollouts.gap_summary import COARSE_FLOOR, FLOORS, TIGHT, GapSummary, exceeds_rounding, summarize_gap
from ckptcheck.rollouts.metrics.elementwise import TOLERANCE, ElementwiseGap, compare_elements
from ckptcheck.rollouts.thresholds import Thresholds

ALONE = 2
"""How many responses the probe decodes one by one, which takes as many steps as they have tokens, twice."""
TOKENS = 16
"""Tokens of a response."""
EAGER = {"compilation": "eager"}
Runs = list[Sequence[float]]


@dataclass(frozen=True)
class DecodeResult:
    """How much the logprobs of decoding one by one differ from those of other ways to score the same tokens."""

    prefill: GapSummary
    """The gap to one prefill of the same tokens."""
    repeat_gap: GapSummary
    """The gap to decoding the same tokens once more."""
    batch_gap: GapSummary
    """The gap to decoding all responses at once."""
    halves: tuple[float, float]
    """Mean exp|Δ| against the prefill, of the first and of the second half of the first response's length."""
    dtype: str
    """The engine's compute dtype."""

    @property
    def section(self) -> Section:
        """The table."""
        rows = (("one prefill", self.prefill), ("the same again", self.repeat_gap), ("all at once", self.batch_gap))
        return Section(
            "Decoding against …",
            ("", "tokens", "mult_prob_error", "mean |Δ|", "largest |Δ|"),
            tuple((name, gap.tokens, gap.mult_prob_error, gap.mean, gap.largest) for name, gap in rows),
        )


def compare_decoding(environment: ProbeEnvironment) -> ProbeRun:
    """Decode long responses, then score the same tokens as prompts."""
    engine = yield environment.setup
    room = environment.length - max(map(len, environment.prompts))
    generations = environment.responses(engine, max(2, min(environment.long, room)))
    sequences = environment.sequences(generations)[:ALONE]
    decoded = environment.followed(engine, sequences)
    repeated = environment.followed(engine, sequences)
    engine.reset_prefix_cache()
    batched = [generation.logprobs for generation in generations[:ALONE]]
    prefill = environment.of_response([score.prompt_logprobs for score in engine.score(sequences)])
    half = len(decoded[0]) // 2
    first_half, second_half = (
        summarize_gap(
            [logprobs[part] for logprobs in decoded], [logprobs[part] for logprobs in prefill]
        ).mult_prob_error
        for part in (slice(0, half), slice(half, None))
    )
    return DecodeResult(
        summarize_gap(decoded, prefill),
        summarize_gap(decoded, repeated),
        summarize_gap(decoded, batched),
        (first_half, second_half),
        engine.info.dtype,
    )


@dataclass(frozen=True)
class SetupGap:
    """The gap between one set-up and the base."""

    setup: str
    """The switches of the set-up, as text."""
    prefill: GapSummary
    """The gap of logprobs from a prefill."""
    decode: GapSummary
    """The gap of logprobs from decoding."""

    @property
    def largest(self) -> float:
        """The largest |Δ| in nats, of prefill and decoding."""
        return max(self.prefill.largest, self.decode.largest)

    @property
    def error(self) -> float:
        """Mean exp|Δ|, the worse of prefill and decoding."""
        return max(self.prefill.mult_prob_error, self.decode.mult_prob_error)


@dataclass(frozen=True)
class SetupsResult:
    """The gaps between a base set-up and others."""

    base: str
    """The set-up that all others are compared with, as text."""
    others: tuple[SetupGap, ...]
    dtype: str
    """The engine's compute dtype."""
    cached: int = 0
    """How many prompt tokens came from the prefix cache."""

    @property
    def section(self) -> Section:
        """The table."""
        rows = tuple(
            (
                gap.setup,
                gap.prefill.largest,
                gap.prefill.mult_prob_error,
                gap.decode.largest,
                gap.decode.mult_prob_error,
            )
            for gap in self.others
        )
        columns = ("", "prefill largest |Δ|", "mult_prob_error", "decoding largest |Δ|", "mult_prob_error")
        return Section(f"Against {self.base}", columns, rows)


def find_differing_setups(result: SetupsResult) -> list[SetupGap]:
    """Return the set-ups whose logprobs differ from those of the first one by more than rounding."""
    return [
        gap
        for gap in result.others
        if exceeds_rounding(gap.prefill, result.dtype) or exceeds_rounding(gap.decode, result.dtype)
    ]


def compare_setups(environment: ProbeEnvironment, base: dict[str, Any], others: Sequence[dict[str, Any]]) -> ProbeRun:
    """Score and decode the same tokens in every set-up. base, others: switches that differ from the run's own."""
    engine = yield environment.setup.with_switches(**base)
    generations = environment.responses(engine, TOKENS)
    sequences = environment.sequences(generations)
    prefill, decode = (
        [score.prompt_logprobs for score in engine.score(sequences)],
        environment.followed(engine, sequences),
    )
    gaps = []
    for switches in others:
        engine = yield environment.setup.with_switches(**switches)
        scores = [score.prompt_logprobs for score in engine.score(sequences)]
        decoded = environment.followed(engine, sequences)
        gaps.append(
            SetupGap(describe_switches(switches), summarize_gap(prefill, scores), summarize_gap(decode, decoded))
        )
    return SetupsResult(describe_switches(base), tuple(gaps), engine.info.dtype)


def prefix_cache(environment: ProbeEnvironment) -> ProbeRun:
    """Decode after prompts that are in the prefix cache, and without a prefix cache."""
    from ckptcheck.live.runtime.engines.sampling import Sampling

    prompts = [tuple((tokens * (2 * environment.block))[: environment.block + 7]) for tokens in environment.prompts[:2]]
    engine = yield environment.setup
    engine.reset_prefix_cache()
    sampling = Sampling(0.0, max_tokens=TOKENS, ignore_eos=True)
    engine.generate(prompts, sampling)
    warm = engine.generate(prompts, sampling)
    cached = sum(generation.cached_tokens for generation in warm)
    if not cached:
        raise Skip("no token came from the prefix cache")
    engine = yield environment.setup.with_switches(prefix_cache=False)
    sequences = [(*prompt, *generation.tokens) for prompt, generation in zip(prompts, warm, strict=True)]
    cold = [engine.score_by_decode([tokens], len(prompt))[0] for prompt, tokens in zip(prompts, sequences, strict=True)]
    gap = summarize_gap([generation.logprobs for generation in warm], cold)
    return SetupsResult(
        "the engine as it comes",
        (SetupGap("prefix_cache=off", gap, gap),),
        engine.info.dtype,
        cached,
    )


def describe_switches(switches: dict[str, Any]) -> str:
    """Return switches as the user writes them."""
    from ckptcheck.live.runtime.engines.engine_options import Switches

    return str(Switches(**switches))


scheduling = partial(compare_setups, base={"async_scheduling": True}, others=({"async_scheduling": False},))
chunks = partial(compare_setups, base={"chunked_prefill": False}, others=({"chunked_prefill": True, "chunk": 16},))


@dataclass(frozen=True)
class ModeComparison:
    """Two runs of logprobs of the same tokens: as numpy's assert_allclose sees them, and by the metrics of parity."""

    elements: ElementwiseGap
    gap: GapSummary


@dataclass(frozen=True)
class CompilationResult:
    """The logprobs of a compiled engine, compared with those of eager mode."""

    eager: str
    """The switches of eager mode, as text."""
    compiled: str
    """The switches of the other mode, as text."""
    dtype: str
    """The engine's compute dtype."""
    prefill: ModeComparison
    decode: ModeComparison
    floor: ModeComparison
    """Eager mode against itself: the larger of decoding against prefill, and of two prefills."""

    @property
    def exceeds_rounding(self) -> bool:
        """Whether rounding does not explain the gap of prefill or of decoding.

        It does not in float32 from TOLERANCE on, in narrower dtypes from a mult_prob_error of 1.05 on, and where the mean |Δ| of
        elements beyond the tolerance is more than five times that of the floor. A mode that repeats itself exactly has no floor:
        then, and where it is smaller, the rounding of the dtype stands for it.
        """
        return self._exceeds_rounding(self.prefill) or self._exceeds_rounding(self.decode)

    @property
    def worse(self) -> ModeComparison:
        """The one of prefill and decoding that rounding does not explain; of two such, the one with the larger mult_prob_error."""
        return max(
            self.prefill,
            self.decode,
            key=lambda side: (
                self._exceeds_rounding(side),
                round(side.gap.mult_prob_error, 6),
                side.elements.share,
            ),
        )

    def _exceeds_rounding(self, side: ModeComparison) -> bool:
        return exceeds_rounding(side.gap, self.dtype) or (
            side.elements.beyond > 0
            and not side.gap.mean <= Thresholds.floor * max(self.floor.gap.mean, FLOORS.get(self.dtype, COARSE_FLOOR))
        )

    @property
    def section(self) -> Section:
        """The table of differences."""
        sides = {"prefill": self.prefill, "decoding": self.decode, f"{self.eager} against itself": self.floor}
        columns = ("", "logprobs", "beyond", "share", "largest |Δ|", "relative", "sequence", "position", "NaN", "mean |Δ|",
                   "mult_prob_error")  # fmt: skip
        rows = tuple((name, *_list_cells(side)) for name, side in sides.items())
        return Section(f"{self.compiled} against {self.eager}, atol = rtol = {TOLERANCE:g}", columns, rows)

    def describe_gap(self) -> str:
        """Say how many logprobs differ, by how much, where, and how that compares with the floor."""
        worse, floor = self.worse, self.floor.gap.mean
        elements = worse.elements
        where = "prefill" if worse is self.prefill else "decoding"
        stricter = "" if elements.beyond else f", while float32 allows {TIGHT:g} nats"
        parts = [
            f"with {self.compiled} {elements.beyond:,} of {elements.elements:,} logprobs of {where} ({elements.share:.1%}) are"
            f" beyond atol = rtol = {TOLERANCE:g} of {self.eager}{stricter}"
        ]
        if elements.place is not None:
            sequence, position = elements.place
            parts.append(
                f"up to {elements.largest:.3g} nats (relative {elements.relative:.3g}), at sequence {sequence}, position"
                f" {position}"
            )
        if elements.one_sided_place is not None:
            sequence, position = elements.one_sided_place
            parts.append(
                f"{elements.one_sided:,} not finite in one mode alone, first at sequence {sequence}, position {position}"
            )
        parts.append(f"mult_prob_error {worse.gap.mult_prob_error:.4g}")
        parts.append(
            f"the mean |Δ| is {worse.gap.mean / floor:.3g} times the floor of eager mode"
            if floor > 0
            else "eager mode repeats itself exactly"
        )
        return "; ".join(parts)


def compare_modes(environment: ProbeEnvironment, mode: dict[str, Any]) -> ProbeRun:
    """Score, decode and generate the same tokens in eager mode and in another. mode: switches of the other mode."""
    engine = yield environment.setup.with_switches(**EAGER)
    sequences = environment.sequences(environment.responses(engine, TOKENS))
    prefill, decoded, again = _run_mode(environment, engine, sequences)
    engine = yield environment.setup.with_switches(**mode)
    compiled_prefill, compiled_decoded, _ = _run_mode(environment, engine, sequences)
    starts = [len(prompt) for prompt, _ in zip(environment.prompts, sequences, strict=False)]
    from_start = [1] * len(starts)
    repeated = _compare(prefill, again, from_start)
    own_paths = _compare(environment.of_response(prefill), decoded, starts)
    return CompilationResult(
        describe_switches(EAGER),
        describe_switches(mode),
        engine.info.dtype,
        _compare(prefill, compiled_prefill, from_start),
        _compare(decoded, compiled_decoded, starts),
        max(repeated, own_paths, key=lambda comparison: comparison.gap.mean),
    )


graphs = partial(compare_modes, mode={"compilation": "graphs"})
inductor = partial(compare_modes, mode={"compilation": "inductor"})
casts = partial(compare_modes, mode={"compilation": "inductor", "precision_casts": True})


def _run_mode(
    environment: ProbeEnvironment, engine: Engine, sequences: Sequence[tuple[int, ...]]
) -> tuple[Runs, Runs, Runs]:
    """Return logprobs of prefill, of decoding and of a second prefill."""
    prefill: Runs = [score.prompt_logprobs for score in engine.score(sequences)]
    decoded: Runs = [*environment.followed(engine, sequences)]
    # what compiles at its first call has done so by now
    engine.reset_prefix_cache()
    return prefill, decoded, [score.prompt_logprobs for score in engine.score(sequences)]


def _compare(
    reference: Sequence[Sequence[float]], other: Sequence[Sequence[float]], starts: Sequence[int]
) -> ModeComparison:
    return ModeComparison(compare_elements(reference, other, starts), summarize_gap(reference, other))


def _list_cells(side: ModeComparison) -> tuple[Cell, ...]:
    elements = side.elements
    sequence, position = (None, None) if elements.place is None else elements.place
    return (elements.elements, elements.beyond, elements.share, elements.largest, elements.relative, sequence, position,
            elements.one_sided, side.gap.mean, side.gap.mult_prob_error)  # fmt: skip
