"""Probes whether a compiled engine computes what it computes in eager mode: NeMo-RL's diagnostic 4, element by element.

Beside the gap stands the floor: by how much eager mode differs from itself, between decoding and prefill and from run to run. And
beside both stand the seconds of each mode, since compilation trades agreement for speed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ckptcheck.linter.report import Cell, Section
from ckptcheck.live.experiments.probes.environment import ProbeEnvironment, ProbeRun
from ckptcheck.live.experiments.probes.setups import TOKENS, describe_switches
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.rollouts.gap_summary import COARSE_FLOOR, FLOORS, TIGHT, GapSummary, exceeds_rounding, summarize_gap
from ckptcheck.rollouts.metrics.elementwise import TOLERANCE, ElementwiseGap, compare_elements
from ckptcheck.rollouts.thresholds import Thresholds

Tokens = tuple[int, ...]
EAGER = {"compilation": "eager"}


@dataclass(frozen=True)
class ModeTimes:
    """Seconds of one mode, after a first pass over the same tokens."""

    prefill: float
    """Seconds in which the engine scored all sequences."""
    generation: float
    """Seconds in which it generated the responses."""


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
    eager_times: ModeTimes
    compiled_times: ModeTimes

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
    def sections(self) -> tuple[Section, ...]:
        """The table of differences, and that of seconds."""
        sides = {"prefill": self.prefill, "decoding": self.decode, f"{self.eager} against itself": self.floor}
        columns = ("", "logprobs", "beyond", "share", "largest |Δ|", "relative", "sequence", "position", "NaN", "mean |Δ|",
                   "mult_prob_error")  # fmt: skip
        rows = tuple((name, *_list_cells(side)) for name, side in sides.items())
        times = tuple(
            (name, mode.prefill, mode.generation)
            for name, mode in ((self.eager, self.eager_times), (self.compiled, self.compiled_times))
        )
        title = f"{self.compiled} against {self.eager}, atol = rtol = {TOLERANCE:g}"
        seconds = Section(f"Seconds of {self.compiled}", ("", "prefill", "generation"), times)
        return Section(title, columns, rows), seconds

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


def probe(environment: ProbeEnvironment, mode: dict[str, Any]) -> ProbeRun:
    """Score, decode and generate the same tokens in eager mode and in another. mode: switches of the other mode."""
    engine = yield environment.setup.with_switches(**EAGER)
    sequences = environment.sequences(environment.responses(engine, TOKENS))
    prefill, decoded, again, eager_times = _run_mode(environment, engine, sequences)
    engine = yield environment.setup.with_switches(**mode)
    compiled_prefill, compiled_decoded, _, compiled_times = _run_mode(environment, engine, sequences)
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
        eager_times,
        compiled_times,
    )


graphs = partial(probe, mode={"compilation": "graphs"})
inductor = partial(probe, mode={"compilation": "inductor"})
casts = partial(probe, mode={"compilation": "inductor", "precision_casts": True})

Runs = list[Sequence[float]]


def _run_mode(
    environment: ProbeEnvironment, engine: Engine, sequences: Sequence[Tokens]
) -> tuple[Runs, Runs, Runs, ModeTimes]:
    """Return logprobs of prefill, of decoding and of a second prefill, and the seconds of the second pass."""
    prefill: Runs = [score.prompt_logprobs for score in engine.score(sequences)]
    decoded: Runs = [*environment.followed(engine, sequences)]
    # what compiles at its first call has done so by now
    engine.reset_prefix_cache()
    began = time.perf_counter()
    again: Runs = [score.prompt_logprobs for score in engine.score(sequences)]
    scored = time.perf_counter()
    environment.responses(engine, TOKENS)
    return prefill, decoded, again, ModeTimes(scored - began, time.perf_counter() - scored)


def _compare(
    reference: Sequence[Sequence[float]], other: Sequence[Sequence[float]], starts: Sequence[int]
) -> ModeComparison:
    return ModeComparison(compare_elements(reference, other, starts), summarize_gap(reference, other))


def _list_cells(side: ModeComparison) -> tuple[Cell, ...]:
    elements = side.elements
    sequence, position = (None, None) if elements.place is None else elements.place
    return (elements.elements, elements.beyond, elements.share, elements.largest, elements.relative, sequence, position,
            elements.one_sided, side.gap.mean, side.gap.mult_prob_error)  # fmt: skip
