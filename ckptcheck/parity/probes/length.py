"""Does the engine keep to max_model_len, and use all of it? NeMo-RL's diagnostics 1."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ckptcheck.engines.sampling import Sampling
from ckptcheck.parity.probes.bench import Bench, Probe

LIMIT = 48


@dataclass(frozen=True)
class LengthSeen:
    """prompt, response: tokens. limit: max_model_len. finish: the engine's word for why it ended."""

    limit: int
    prompt: int
    response: int
    finish: str


def probe(bench: Bench) -> Probe:
    """Ask for more than there is room for."""
    engine = yield replace(bench.setup, length=LIMIT)
    prompt = tuple(bench.prompts[0] * LIMIT)[: LIMIT - 8]
    made = engine.generate([prompt], Sampling(0.0, max_tokens=4 * LIMIT, ignore_eos=True))[0]
    return LengthSeen(LIMIT, len(prompt), len(made.tokens), made.finish)
