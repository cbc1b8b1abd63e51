"""Probes whether both sides route tokens to the same experts."""

from __future__ import annotations

from dataclasses import dataclass

from ckptcheck.linter.report import Section
from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.probes.environment import ProbeEnvironment, ProbeRun


@dataclass(frozen=True)
class RoutingResult:
    """How often the two sides route tokens to different experts."""

    layers: tuple[int, ...]
    """For each layer of experts: how many tokens go to different sets of experts on the two sides."""
    tokens: int
    """How many tokens both sides routed."""
    rerouted_tokens: int
    """How many tokens have different sets in at least one layer."""
    dtypes: tuple[str, str]
    """Compute dtypes of the engine and of the trainer."""

    @property
    def share(self) -> float:
        """The share of all routing decisions that differ."""
        return sum(self.layers) / (self.tokens * len(self.layers))

    @property
    def section(self) -> Section:
        """The table."""
        rows = tuple((layer, self.tokens, count, count / self.tokens) for layer, count in enumerate(self.layers))
        return Section("Tokens that go to other experts", ("layer of experts", "tokens", "differing", "share"), rows)


def probe(environment: ProbeEnvironment) -> ProbeRun:
    """Route the same tokens on both sides."""
    engine = yield environment.setup
    trainer = environment.trainer()
    counts: list[int] = []
    tokens = rerouted_tokens = 0
    for sequence in environment.prompts:
        engine_layers, trainer_layers = engine.expert_routing(sequence), trainer.expert_routing(sequence)
        if not engine_layers or not trainer_layers:
            side = engine.info.name if not engine_layers else trainer.info.name
            raise Skip(f"{side} does not tell which experts tokens go to")
        if len(engine_layers) != len(trainer_layers):
            raise Skip(
                f"the engine tells of {len(engine_layers)} layers of experts, the trainer of {len(trainer_layers)}"
            )
        counts = counts or [0] * len(engine_layers)
        rerouted: set[int] = set()
        for layer, (engine_experts, trainer_experts) in enumerate(zip(engine_layers, trainer_layers, strict=True)):
            rerouted_in_layer = {
                position
                for position, (engine_choice, trainer_choice) in enumerate(
                    zip(engine_experts, trainer_experts, strict=True)
                )
                if set(engine_choice) != set(trainer_choice)
            }
            counts[layer] += len(rerouted_in_layer)
            rerouted |= rerouted_in_layer
        tokens += len(sequence)
        rerouted_tokens += len(rerouted)
    return RoutingResult(tuple(counts), tokens, rerouted_tokens, (engine.info.dtype, trainer.info.dtype))
