"""Does decoding compute what one prefill computes? NeMo-RL's diagnostics 2. And does the same request give the same twice?"""

from __future__ import annotations

from dataclasses import dataclass

from ckptcheck.parity.gap import Gap, gap
from ckptcheck.parity.probes.bench import Bench, Probe
from ckptcheck.report import Section

ALONE = 2
"""Responses that are decoded one by one, which takes as many steps as they have tokens, twice."""


@dataclass(frozen=True)
class DecodeSeen:
    """prefill: how far the logprobs of decoding are from those of one prefill. again: from decoding the same once more.

    together: from decoding all at once. halves: mean exp|Δ| of the first and of the second half of the response.
    """

    prefill: Gap
    again: Gap
    together: Gap
    halves: tuple[float, float]
    dtype: str

    @property
    def section(self) -> Section:
        """The table."""
        rows = (("one prefill", self.prefill), ("the same again", self.again), ("all at once", self.together))
        return Section(
            "Decoding against …",
            ("", "tokens", "mult_prob_error", "mean |Δ|", "largest |Δ|"),
            tuple((name, each.tokens, each.mult_prob_error, each.mean, each.largest) for name, each in rows),
        )


def probe(bench: Bench) -> Probe:
    """Decode far, then hand in what was decoded as prompts."""
    engine = yield bench.setup
    room = bench.length - max(map(len, bench.prompts))
    made = bench.responses(engine, max(2, min(bench.long, room)))
    sequences = bench.sequences(made)[:ALONE]
    decoded = bench.followed(engine, sequences)
    again = bench.followed(engine, sequences)
    engine.reset_prefix_cache()
    together = [each.logprobs for each in made[:ALONE]]
    prefill = bench.of_response([each.prompt for each in engine.score(sequences)])
    half = len(decoded[0]) // 2
    first, second = (
        gap([each[part] for each in decoded], [each[part] for each in prefill]).mult_prob_error
        for part in (slice(0, half), slice(half, None))
    )
    return DecodeSeen(
        gap(decoded, prefill), gap(decoded, again), gap(decoded, together), (first, second), engine.info.dtype
    )
