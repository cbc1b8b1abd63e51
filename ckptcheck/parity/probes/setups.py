"""One engine, set up in two ways: does it compute the same? Compilation, the prefix cache, scheduling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ckptcheck.parity.gap import Gap, gap
from ckptcheck.parity.probes.bench import Bench, Probe
from ckptcheck.report import Section

TOKENS = 16


@dataclass(frozen=True)
class Alternative:
    """setup: in words. prefill, decode: how far its logprobs are from those of the first set-up."""

    setup: str
    prefill: Gap
    decode: Gap

    @property
    def largest(self) -> float:
        """Nats."""
        return max(self.prefill.largest, self.decode.largest)

    @property
    def error(self) -> float:
        """Mean exp|Δ|, the worse of both."""
        return max(self.prefill.mult_prob_error, self.decode.mult_prob_error)


@dataclass(frozen=True)
class AlternativesSeen:
    """base: the set-up that all others are held against. cached: tokens of prompts that came from the prefix cache."""

    base: str
    others: tuple[Alternative, ...]
    dtype: str
    cached: int = 0

    @property
    def section(self) -> Section:
        """The table."""
        rows = tuple(
            (
                each.setup,
                each.prefill.largest,
                each.prefill.mult_prob_error,
                each.decode.largest,
                each.decode.mult_prob_error,
            )
            for each in self.others
        )
        columns = ("", "prefill largest |Δ|", "mult_prob_error", "decoding largest |Δ|", "mult_prob_error")
        return Section(f"Against {self.base}", columns, rows)


def probe(bench: Bench, base: dict[str, Any], others: Sequence[dict[str, Any]]) -> Probe:
    """Score and decode the same tokens in every set-up. base, others: switches that differ from the run's own."""
    engine = yield bench.setup.having(**base)
    made = bench.responses(engine, TOKENS)
    sequences = bench.sequences(made)
    prefill, decode = [each.prompt for each in engine.score(sequences)], bench.followed(engine, sequences)
    found = []
    for switches in others:
        engine = yield bench.setup.having(**switches)
        scores = [each.prompt for each in engine.score(sequences)]
        decoded = bench.followed(engine, sequences)
        found.append(Alternative(_words(switches), gap(prefill, scores), gap(decode, decoded)))
    return AlternativesSeen(_words(base), tuple(found), engine.info.dtype)


def prefix_cache(bench: Bench) -> Probe:
    """Decode after prompts that lie in the prefix cache, and with no cache at all."""
    from ckptcheck.engines.sampling import Sampling

    prompts = [tuple((tokens * (2 * bench.block))[: bench.block + 7]) for tokens in bench.prompts[:2]]
    engine = yield bench.setup
    engine.reset_prefix_cache()
    asked = Sampling(0.0, max_tokens=TOKENS, ignore_eos=True)
    engine.generate(prompts, asked)
    warm = engine.generate(prompts, asked)
    engine = yield bench.setup.having(prefix_cache=False)
    sequences = [(*prompt, *each.tokens) for prompt, each in zip(prompts, warm, strict=True)]
    cold = [engine.follow([tokens], len(prompt))[0] for prompt, tokens in zip(prompts, sequences, strict=True)]
    between = gap([each.logprobs for each in warm], cold)
    return AlternativesSeen(
        "the engine as it comes",
        (Alternative("prefix_cache=off", between, between),),
        engine.info.dtype,
        sum(each.cached for each in warm),
    )


def _words(switches: dict[str, Any]) -> str:
    from ckptcheck.engines.switches import Switches

    return str(Switches(**switches))


EAGER = {"compilation": "eager"}
graphs = partial(probe, base=EAGER, others=({"compilation": "graphs"},))
inductor = partial(probe, base=EAGER, others=({"compilation": "inductor"},))
casts = partial(probe, base=EAGER, others=({"compilation": "inductor", "precision_casts": True},))
scheduling = partial(probe, base={"async_scheduling": True}, others=({"async_scheduling": False},))
chunks = partial(probe, base={"chunked_prefill": False}, others=({"chunked_prefill": True, "chunk": 16},))
