"""Do tokens go to the same experts on both sides?"""

from __future__ import annotations

from dataclasses import dataclass

from ckptcheck.parity.probes.bench import Bench, Probe
from ckptcheck.report import Section
from ckptcheck.rule import Skip


@dataclass(frozen=True)
class RoutingSeen:
    """layers: of each, how many tokens go to another set of experts on the other side. tokens: of the sequences.

    moved: tokens with another set in at least one layer. dtypes: of the engine and of the trainer.
    """

    layers: tuple[int, ...]
    tokens: int
    moved: int
    dtypes: tuple[str, str]

    @property
    def share(self) -> float:
        """Of all decisions, those that differ."""
        return sum(self.layers) / (self.tokens * len(self.layers))

    @property
    def section(self) -> Section:
        """The table."""
        rows = tuple((layer, self.tokens, count, count / self.tokens) for layer, count in enumerate(self.layers))
        return Section("Tokens that go to other experts", ("layer of experts", "tokens", "differing", "share"), rows)


def probe(bench: Bench) -> Probe:
    """Route the same tokens on both sides."""
    engine = yield bench.setup
    trainer = bench.trainer()
    differing: list[int] = []
    tokens = moved = 0
    for sequence in bench.prompts:
        one, other = engine.routes(sequence), trainer.routes(sequence)
        if not one or not other:
            side = engine.info.name if not one else trainer.info.name
            raise Skip(f"{side} does not tell which experts tokens go to")
        if len(one) != len(other):
            raise Skip(f"the engine tells of {len(one)} layers of experts, the trainer of {len(other)}")
        differing = differing or [0] * len(one)
        odd: set[int] = set()
        for layer, (here, there) in enumerate(zip(one, other, strict=True)):
            apart = {place for place, (a, b) in enumerate(zip(here, there, strict=True)) if set(a) != set(b)}
            differing[layer] += len(apart)
            odd |= apart
        tokens += len(sequence)
        moved += len(odd)
    return RoutingSeen(tuple(differing), tokens, moved, (engine.info.dtype, trainer.info.dtype))
