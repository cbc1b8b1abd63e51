"""Probes whether decoding computes what one prefill computes (NeMo-RL's diagnostics 2), and whether requests repeat."""

from __future__ import annotations

from dataclasses import dataclass

from ckptcheck.linter.report import Section
from ckptcheck.live.experiments.probes.environment import ProbeEnvironment, ProbeRun
from ckptcheck.rollouts.gap_summary import GapSummary, summarize_gap

ALONE = 2
"""How many responses the probe decodes one by one, which takes as many steps as they have tokens, twice."""


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


def probe(environment: ProbeEnvironment) -> ProbeRun:
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
