"""Probes whether one engine computes the same in two set-ups: prefix cache, scheduling, chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ckptcheck.linter.report import Section
from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.probes.environment import ProbeEnvironment, ProbeRun
from ckptcheck.rollouts.gap_summary import GapSummary, exceeds_rounding, summarize_gap

TOKENS = 16
"""Tokens of a response."""


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


def probe(environment: ProbeEnvironment, base: dict[str, Any], others: Sequence[dict[str, Any]]) -> ProbeRun:
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


scheduling = partial(probe, base={"async_scheduling": True}, others=({"async_scheduling": False},))
chunks = partial(probe, base={"chunked_prefill": False}, others=({"chunked_prefill": True, "chunk": 16},))
