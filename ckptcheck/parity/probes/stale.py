"""After a weight update: does the engine still decode from keys and values of the weights before?"""

from __future__ import annotations

from dataclasses import dataclass

from ckptcheck.engines.sampling import Sampling
from ckptcheck.parity.gap import Gap, gap
from ckptcheck.parity.probes.bench import Bench, Probe

TOKENS = 8


@dataclass(frozen=True)
class StaleSeen:
    """cached: tokens of the prompt that came from the prefix cache after the update. ok, answer: what the engine said of it.

    gap: of tokens decoded then to the same tokens under another cache salt, which shares nothing with what was before.
    """

    cached: int
    gap: Gap
    ok: bool
    answer: str


def probe(bench: Bench) -> Probe:
    """Fill the cache, update the weights as a job does that resets nothing, and ask again."""
    engine = yield bench.setup
    before, after = bench.updates()
    prompt = tuple((bench.prompts[0] * (3 * bench.block))[: 2 * bench.block + 7])
    asked = Sampling(0.0, max_tokens=TOKENS, ignore_eos=True)
    engine.reset_prefix_cache()
    engine.generate([prompt], asked)
    answer = engine.refit(after, engine.transports[0])
    kept = engine.generate([prompt], asked)[0]
    sequence = (*prompt, *kept.tokens)
    engine.generate([prompt], Sampling(0.0, max_tokens=1, ignore_eos=True), salt="after")
    fresh = engine.generate([prompt], asked, salt="another")[0]
    if fresh.tokens == kept.tokens:
        clean = fresh.logprobs
    else:
        engine.reset_prefix_cache()
        clean = engine.follow([sequence], len(prompt))[0]
    seen = StaleSeen(kept.cached, gap([kept.logprobs], [clean]), answer.ok, answer.message)
    engine.reset_prefix_cache()
    engine.refit(before, engine.transports[0])
    engine.reset_prefix_cache()
    return seen
