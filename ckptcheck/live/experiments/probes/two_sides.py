"""Probes of an engine beside a trainer: a float32 head on either side, and the experts of tokens; and of a trainer that pads."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ckptcheck.linter.report import Section
from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.probes.environment import ProbeEnvironment, ProbeRun
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.rollouts.gap_summary import GapSummary, summarize_gap

WORDS = {False: "bfloat16", True: "float32"}


@dataclass(frozen=True)
class LmHeadResult:
    """The gaps of all combinations of output heads in bfloat16 and float32."""

    gaps: dict[tuple[bool, bool], GapSummary]
    """(whether the engine's head is in float32, whether the trainer's is) → gap."""
    job_heads: tuple[bool, bool]
    """The combination of the user's job."""

    @property
    def section(self) -> Section:
        """The table."""
        rows = tuple(
            (WORDS[engine], WORDS[trainer], gap.mult_prob_error, gap.mean, gap.largest, gap.k3)
            for (engine, trainer), gap in self.gaps.items()
        )
        columns = ("engine's head", "trainer's head", "mult_prob_error", "mean |Δ|", "largest |Δ|", "k3")
        return Section("The output head of a model in bfloat16", columns, rows)


def compare_heads(environment: ProbeEnvironment) -> ProbeRun:
    """Score the same responses with every combination of head dtypes."""
    gaps: dict[tuple[bool, bool], GapSummary] = {}
    sequences: list[tuple[int, ...]] = []
    decoded = {}
    for head_fp32 in (False, True):
        engine: Engine = yield replace(environment.setup, dtype="bfloat16").with_switches(head_fp32=head_fp32)
        sequences = sequences or environment.sequences(environment.responses(engine, environment.response))
        decoded[head_fp32] = environment.followed(engine, sequences)
    for head_fp32 in (False, True):
        scored = environment.of_response(environment.trainer("bfloat16", head_fp32).score(sequences))
        for engine_head_fp32, values in decoded.items():
            gaps[engine_head_fp32, head_fp32] = summarize_gap(values, scored)
    job_heads = bool(environment.setup.switches.head_fp32), environment.head_fp32
    return LmHeadResult(dict(sorted(gaps.items())), job_heads)


@dataclass(frozen=True)
class PaddingResult:
    """The gap between sequences that the trainer scores alone and the same sequences padded in a batch."""

    gap: GapSummary
    """Against a batch in which all are padded to one that is twice as long."""
    dtype: str
    """The trainer's compute dtype."""


def pad_sequences(environment: ProbeEnvironment) -> ProbeRun:
    """Score sequences alone, and padded in one batch."""
    # this probe needs no engine
    yield from ()
    trainer = environment.trainer()
    alone = [trainer.score([tokens])[0] for tokens in environment.prompts]
    longest = max(map(len, environment.prompts))
    together = trainer.score_batched([*environment.prompts, (environment.prompts[0] * longest)[: 2 * longest]])
    return PaddingResult(summarize_gap(alone, together[: len(alone)]), trainer.info.dtype)


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


def compare_routing(environment: ProbeEnvironment) -> ProbeRun:
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
