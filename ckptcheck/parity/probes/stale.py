"""After a weight update: does the engine still decode from keys and values of the weights before?"""

from __future__ import annotations

from dataclasses import dataclass

from ckptcheck.engines.base import Engine
from ckptcheck.engines.sampling import Sampling
from ckptcheck.parity.gap import Gap
from ckptcheck.parity.gap import gap as gap_of
from ckptcheck.parity.probes.bench import Bench, Probe

ASKED = Sampling(0.0, max_tokens=8, ignore_eos=True)
LEAST, TIMES = 1e-4, 5.0
"""Nats, and multiples of the same before the update, up to which two answers are one."""


@dataclass(frozen=True)
class StaleSeen:
    """cached: tokens of the prompt that came from the prefix cache after the update; warm: before it, when they should.

    ok, answer: what the engine said of the update. other: the first token is another than under another cache salt, which
    shares nothing with what was before. gap: of the tokens that are the same. noise: the gap before the update, when both
    are right.
    """

    cached: int
    other: bool
    gap: Gap
    noise: Gap
    ok: bool
    answer: str
    warm: int

    @property
    def stale(self) -> bool:
        """Whether what was cached is not what the weights compute."""
        return self.cached > 0 and (self.other or self.gap.largest > max(LEAST, TIMES * self.noise.largest))


def probe(bench: Bench) -> Probe:
    """Fill the cache, update the weights as a job does that resets nothing, and ask again."""
    engine = yield bench.setup
    before, after = bench.updates()
    prompt = tuple((bench.prompts[0] * (3 * bench.block))[: 2 * bench.block + 7])
    engine.reset_prefix_cache()
    engine.generate([prompt], ASKED)
    warm, _, noise = _apart(engine, prompt, "before")
    answer = engine.refit(after, engine.transports[0])
    cached, other, gap = _apart(engine, prompt, "after")
    engine.reset_prefix_cache()
    engine.refit(before, engine.transports[0])
    engine.reset_prefix_cache()
    return StaleSeen(cached, other, gap, noise, answer.ok, answer.message, warm)


def _apart(engine: Engine, prompt: tuple[int, ...], salt: str) -> tuple[int, bool, Gap]:
    """Answer from the cache and under a salt: how much was cached, whether the first token is another, how far apart they are.

    Up to the first token that differs: from there on they are answers to different questions.
    """
    kept = engine.generate([prompt], ASKED)[0]
    fresh = engine.generate([prompt], ASKED, salt=salt)[0]
    same = next(
        (n for n, (a, b) in enumerate(zip(kept.tokens, fresh.tokens, strict=False)) if a != b), len(kept.tokens)
    )
    most = max(1, same)
    return kept.cached, not same, gap_of([kept.logprobs[:most]], [fresh.logprobs[:most]])
