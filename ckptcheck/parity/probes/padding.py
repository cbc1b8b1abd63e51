"""Does the trainer give a sequence the same logprobs alone and beside longer ones, to which it is padded?"""

from __future__ import annotations

from dataclasses import dataclass

from ckptcheck.parity.gap import Gap, gap
from ckptcheck.parity.probes.bench import Bench, Probe


@dataclass(frozen=True)
class PaddingSeen:
    """gap: of sequences scored alone, and filled up to one twice as long in one batch. dtype: the trainer's."""

    gap: Gap
    dtype: str


def probe(bench: Bench) -> Probe:
    """Score both ways."""
    yield from ()  # no engine is needed
    trainer = bench.trainer()
    alone = [trainer.score([tokens])[0] for tokens in bench.prompts]
    longest = max(map(len, bench.prompts))
    together = trainer.padded([*bench.prompts, (bench.prompts[0] * longest)[: 2 * longest]])
    return PaddingSeen(gap(alone, together[: len(alone)]), trainer.info.dtype)
