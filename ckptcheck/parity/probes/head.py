"""In bfloat16: what does an output head in float32 bring, on the engine, on the trainer, and on both?"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ckptcheck.engines.base import Engine
from ckptcheck.parity.gap import Gap, gap
from ckptcheck.parity.probes.bench import Bench, Probe
from ckptcheck.report import Section

WORDS = {False: "bfloat16", True: "float32"}


@dataclass(frozen=True)
class HeadSeen:
    """gaps: (the engine's head is in float32, the trainer's is) → gap. own: the two as the user's job has them, None: not said."""

    gaps: dict[tuple[bool, bool], Gap]
    own: tuple[bool, bool]

    @property
    def section(self) -> Section:
        """The table."""
        rows = tuple(
            (WORDS[engine], WORDS[trainer], each.mult_prob_error, each.mean, each.largest, each.k3)
            for (engine, trainer), each in self.gaps.items()
        )
        columns = ("engine's head", "trainer's head", "mult_prob_error", "mean |Δ|", "largest |Δ|", "k3")
        return Section("The output head of a model in bfloat16", columns, rows)


def probe(bench: Bench) -> Probe:
    """Score the same responses with every combination."""
    gaps: dict[tuple[bool, bool], Gap] = {}
    sequences: list[tuple[int, ...]] = []
    decoded = {}
    for wide in (False, True):
        engine: Engine = yield replace(bench.setup, dtype="bfloat16").having(head_fp32=wide)
        sequences = sequences or bench.sequences(bench.responses(engine, bench.response))
        decoded[wide] = bench.followed(engine, sequences)
    for wide in (False, True):
        scored = bench.of_response(bench.trainer("bfloat16", wide).score(sequences))
        for engine_wide, values in decoded.items():
            gaps[engine_wide, wide] = gap(values, scored)
    own = bool(bench.setup.switches.head_fp32), bench.head_fp32
    return HeadSeen(dict(sorted(gaps.items())), own)
