"""Probes what an output head in float32 changes for a model in bfloat16: on the engine, on the trainer, and on both."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ckptcheck.linter.report import Section
from ckptcheck.live.experiments.probes.environment import ProbeEnvironment, ProbeRun
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.rollouts.gap_summary import GapSummary, summarize_gap

WORDS = {False: "bfloat16", True: "float32"}


@dataclass(frozen=True)
class LmHeadResult:
    """The gaps of all combinations of output heads in bfloat16 and float32."""

    gaps: dict[tuple[bool, bool], GapSummary]
    """(whether the engine's head is in float32, whether the trainer's is) → gap."""
    job_heads: tuple[bool, bool]
    """The combination of the user's job."""

    @property
    def section(self) -> Section:
        """The table."""
        rows = tuple(
            (WORDS[engine], WORDS[trainer], gap.mult_prob_error, gap.mean, gap.largest, gap.k3)
            for (engine, trainer), gap in self.gaps.items()
        )
        columns = ("engine's head", "trainer's head", "mult_prob_error", "mean |Δ|", "largest |Δ|", "k3")
        return Section("The output head of a model in bfloat16", columns, rows)


def probe(environment: ProbeEnvironment) -> ProbeRun:
    """Score the same responses with every combination of head dtypes."""
    gaps: dict[tuple[bool, bool], GapSummary] = {}
    sequences: list[tuple[int, ...]] = []
    decoded = {}
    for head_fp32 in (False, True):
        engine: Engine = yield replace(environment.setup, dtype="bfloat16").with_switches(head_fp32=head_fp32)
        sequences = sequences or environment.sequences(environment.responses(engine, environment.response))
        decoded[head_fp32] = environment.followed(engine, sequences)
    for head_fp32 in (False, True):
        scored = environment.of_response(environment.trainer("bfloat16", head_fp32).score(sequences))
        for engine_head_fp32, values in decoded.items():
            gaps[engine_head_fp32, head_fp32] = summarize_gap(values, scored)
    job_heads = bool(environment.setup.switches.head_fp32), environment.head_fp32
    return LmHeadResult(dict(sorted(gaps.items())), job_heads)
