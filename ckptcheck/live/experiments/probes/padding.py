"""Probes whether the trainer gives a sequence the same logprobs alone and padded to a longer sequence."""

from __future__ import annotations

from dataclasses import dataclass

from ckptcheck.live.experiments.probes.environment import ProbeEnvironment, ProbeRun
from ckptcheck.rollouts.gap_summary import GapSummary, summarize_gap


@dataclass(frozen=True)
class PaddingResult:
    """The gap between sequences that the trainer scores alone and the same sequences padded in a batch."""

    gap: GapSummary
    """Against a batch in which all are padded to one that is twice as long."""
    dtype: str
    """The trainer's compute dtype."""


def probe(environment: ProbeEnvironment) -> ProbeRun:
    """Score sequences alone, and padded in one batch."""
    # this probe needs no engine
    yield from ()
    trainer = environment.trainer()
    alone = [trainer.score([tokens])[0] for tokens in environment.prompts]
    longest = max(map(len, environment.prompts))
    together = trainer.score_batched([*environment.prompts, (environment.prompts[0] * longest)[: 2 * longest]])
    return PaddingResult(summarize_gap(alone, together[: len(alone)]), trainer.info.dtype)
