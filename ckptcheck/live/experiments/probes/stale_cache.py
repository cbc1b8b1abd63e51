"""Probes whether the engine still decodes from keys and values of the old weights after a weight update."""

from __future__ import annotations

from dataclasses import dataclass

from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.probes.environment import ProbeEnvironment, ProbeRun
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.engines.sampling import Sampling
from ckptcheck.rollouts.gap_summary import GapSummary, summarize_gap

ASKED = Sampling(0.0, max_tokens=8, ignore_eos=True)
LEAST, TIMES = 1e-4, 5.0
"""Two answers count as equal if they differ by at most LEAST nats, or by at most TIMES the gap before the update."""


@dataclass(frozen=True)
class StaleCacheResult:
    """The answers after a weight update with and without the prefix cache."""

    cached: int
    """How many prompt tokens came from the prefix cache after the update."""
    first_token_differs: bool
    """Whether the first token differs from the one under another cache salt, which shares nothing with the cache."""
    gap: GapSummary
    """The gap of the two answers up to the first token that differs."""
    noise: GapSummary
    """The same gap before the update, when both answers are right."""

    @property
    def is_stale(self) -> bool:
        """Whether the cached values differ from what the weights compute."""
        return self.cached > 0 and (
            self.first_token_differs or self.gap.largest > max(LEAST, TIMES * self.noise.largest)
        )


def probe(environment: ProbeEnvironment) -> ProbeRun:
    """Fill the cache, update the weights without a reset, as a careless job does, and repeat the request."""
    engine = yield environment.setup
    before, after = environment.updates()
    prompt = tuple((environment.prompts[0] * (3 * environment.block))[: 2 * environment.block + 7])
    engine.reset_prefix_cache()
    engine.generate([prompt], ASKED)
    warm, _, noise = _compare_answers(engine, prompt, "before")
    answer = engine.update_weights(after, engine.transports[0].name)
    cached, first_token_differs, gap = _compare_answers(engine, prompt, "after")
    engine.reset_prefix_cache()
    engine.update_weights(before, engine.transports[0].name)
    engine.reset_prefix_cache()
    if not answer.ok:
        raise Skip(f"the engine refused the update: {answer.message}")
    if not warm:
        raise Skip("no token came from the prefix cache before the update either")
    return StaleCacheResult(cached, first_token_differs, gap, noise)


def _compare_answers(engine: Engine, prompt: tuple[int, ...], salt: str) -> tuple[int, bool, GapSummary]:
    """Request the same answer from the cache and under a cache salt.

    Returns how many prompt tokens were cached, whether the first token differs, and the gap of the two answers up to the first
    token that differs: from there on they continue different texts.
    """
    cached = engine.generate([prompt], ASKED)[0]
    uncached = engine.generate([prompt], ASKED, salt=salt)[0]
    same_count = next(
        (n for n, (a, b) in enumerate(zip(cached.tokens, uncached.tokens, strict=False)) if a != b), len(cached.tokens)
    )
    compared_count = max(1, same_count)
    return (
        cached.cached_tokens,
        not same_count,
        summarize_gap([cached.logprobs[:compared_count]], [uncached.logprobs[:compared_count]]),
    )
