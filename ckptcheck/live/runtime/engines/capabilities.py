"""Abilities that only some engines have beyond `base.Engine`, and whether an engine has one here.

Every check asks this module: an engine needs the methods of an ability, and its `facts` must allow it with the current options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, cast

from ckptcheck.live.runtime.engines.activations import Activations
from ckptcheck.live.runtime.engines.base import (
    Bucket,
    Engine,
    EngineInfo,
    ExpertSlots,
    LoadedWeights,
    Running,
    SequenceScores,
    TensorDigests,
    UpdateResult,
    WeightPart,
)

Ability = Literal[
    "activations", "arrivals", "draft acceptance", "draft updates", "expert copies", "images", "part sums", "sleep", "text",
    "timed updates",
]  # fmt: skip


class AbleEngine(Engine, Protocol):
    """An engine with all methods that only some engines have. `find_able` returns one whose methods may be called."""

    def capture_activations(self, tokens: Sequence[int], folder: Path) -> Activations:
        """Return the output of every module for a prompt, joined over all ranks. folder: for temporary files."""
        ...

    def record_arrivals(self, expected: Sequence[str], *, is_brief: bool = False) -> None:
        """Record from now on what the model's load_weights receives, and the parameters once all of `expected` have come.

        is_brief: digest only the parameters, not the arriving tensors.
        """
        ...

    def read_arrivals(self) -> LoadedWeights:
        """Return what load_weights has received since `record_arrivals`, and stop recording."""
        ...

    def acceptance_length(self, prompts: Sequence[Sequence[int]], tokens: int) -> float:
        """Return the tokens per decode step over greedy responses of so many tokens, one request at a time."""
        ...

    def update_draft(self, buckets: Sequence[Bucket], transport: str) -> UpdateResult:
        """Update the draft model in a session of its own. buckets: in files. transport: that of the policy's weights."""
        ...

    def digest_expert_slots(self) -> Mapping[tuple[int, str], ExpertSlots]:
        """Digest each slot of the expert tensors on every rank."""
        ...

    def rebalance_experts(self) -> None:
        """Move experts between slots, the same way in every engine that started with the same options."""
        ...

    def score_image(self, tokens: Sequence[int]) -> tuple[float, ...]:
        """Return the logprobs of the tokens after the first one, which stands for an image: always the same image."""
        ...

    def reset_encoder_cache(self) -> None:
        """Drop the outputs of the vision tower that the engine caches."""
        ...

    def sum_parts(self, parts: Sequence[WeightPart]) -> list[tuple[int, int]]:
        """Return the contribution of each part to the two sums of its weight's shard digest, computed where the part lies."""
        ...

    def sleep(self, level: int = 1) -> None:
        """Release the memory. Level 1 keeps the weights on the host; level 2 drops them, because a sync brings new ones."""
        ...

    def used_memory(self) -> int:
        """Return the used bytes of its devices, by the driver: torch's own numbers do not show what a sleep releases."""
        ...

    def wake(self, tags: Sequence[str] | None = None) -> None:
        """Allocate the memory again. tags: these parts only (weights, kv_cache, cuda_graph), as far as the engine has them."""
        ...

    def tokenize(self, text: str, messages: Sequence[Mapping[str, str]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tokens of a text, and those of a conversation."""
        ...

    def time_updates(self, on: bool) -> None:
        """Fill no memory during the next updates, so that they run at the engine's own speed, or fill it again."""
        ...


class AdapterEngine(Protocol):
    """An engine whose start allows LoRA adapters: `RemoteEngine.lora_arguments`."""

    info: EngineInfo

    def load_adapter(self, name: str, folder: Path, update: str = "reload") -> None:
        """Load an adapter, or another one under the same name."""
        ...

    def score_with_adapter(
        self, sequences: Sequence[Sequence[int]], adapter: str, *, decode: int = 0
    ) -> list[SequenceScores]:
        """Score by requests with a loaded adapter; "" for none."""
        ...

    def digest_adapter(self, name: str) -> TensorDigests:
        """Digest the tensors of an adapter on every rank."""
        ...

    def write_merged(self, checkpoint: Path, adapter: Path, folder: Path, *, nudge: bool = False) -> None:
        """Write a checkpoint with an adapter merged into its weights."""
        ...

    def write_variant(self, adapter: Path, folder: Path, seed: int) -> None:
        """Write an adapter of the same shape, with other values."""
        ...

    def reset_prefix_cache(self) -> None:
        """Drop all cached keys and values."""
        ...

    def close(self) -> None:
        """End the engine."""
        ...


@dataclass(frozen=True)
class _Row:
    """One ability: the methods that an engine needs for it, and the message for an engine that lacks them."""

    methods: tuple[str, ...]
    lacks: str
    """The end of a sentence that begins with the engine's name: what it lacks."""
    refuse: Callable[[EngineInfo], str] = lambda _: ""
    """Why an engine with the methods cannot do it with its current options; "" if it can."""


def why_sleep_frees_nothing(info: EngineInfo) -> str:
    """Return why a sleep releases no memory; "" if it may."""
    return f"the sleep of {info.name} does nothing on a CPU" if info.facts.get("device") == "cpu" else ""


def why_not_forced(info: EngineInfo) -> str:
    """Return why an engine cannot decode given tokens (`Scorer.score_by_decode`); "" if it can."""
    is_free = info.facts.get("follows") == "False"
    return f"{info.name} cannot be made to follow them: it speculates, or gives processed logprobs" if is_free else ""


def _refuse_sleep(info: EngineInfo) -> str:
    # SGLang moves its buffers out and back on a CPU too
    if (reason := why_sleep_frees_nothing(info)) and info.name != "sglang":
        return reason
    if info.facts.get("sleep") == "False" and not reason:
        return f"{info.name} was not started so that it can sleep"
    return ""


def _refuse_images(info: EngineInfo) -> str:
    images = info.facts.get("images")
    return "" if images == "True" else images or f"{info.name} gets no images here"


def _refuse_copies(info: EngineInfo) -> str:
    copies = info.facts.get("redundant_experts", "")
    return f"{info.name} holds every expert once" if copies in ("", "0") else ""


def _refuse_acceptance(info: EngineInfo) -> str:
    return "" if info.facts.get("draft") in ("mtp", "model") else f"{info.name} has no draft model"


ABILITIES: Mapping[Ability, _Row] = {
    "activations": _Row(("capture_activations",), "does not show what its modules put out"),
    "arrivals": _Row(("record_arrivals", "read_arrivals"), "does not say what reaches its loader"),
    "draft acceptance": _Row(("acceptance_length",), "does not count its decode steps", _refuse_acceptance),
    "draft updates": _Row(("update_draft",), "takes no weights of a draft model"),
    "expert copies": _Row(
        ("digest_expert_slots", "rebalance_experts"), "does not say where its experts lie", _refuse_copies
    ),
    "images": _Row(("score_image", "reset_encoder_cache"), "gets no images here", _refuse_images),
    "part sums": _Row(("sum_parts",), "does not sum what it holds"),
    "sleep": _Row(("sleep", "wake", "used_memory"), "is not put to sleep here", _refuse_sleep),
    "text": _Row(("tokenize",), "is not asked for the tokens of a text here"),
    "timed updates": _Row(("time_updates",), "fills no memory in an update"),
}
"""Ability → its conditions. vLLM and SGLang have all methods; only vLLM has `time_updates`."""


def why_unable(engine: Running, ability: Ability) -> str:
    """Return why an engine cannot do this here; "" if it can."""
    row = ABILITIES[ability]
    if not all(hasattr(engine, method) for method in row.methods):
        return f"{engine.info.name} {row.lacks}"
    return row.refuse(engine.info)


def find_able(engine: Running, ability: Ability) -> AbleEngine | None:
    """Return the engine, typed with the methods of this ability; None if it cannot do it here."""
    return None if why_unable(engine, ability) else cast(AbleEngine, engine)
