"""Abilities that not every engine has with every option, and whether an engine has one here.

Every check asks this module: an engine needs the methods of an ability, and its `facts` must allow it with the current options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from ckptcheck.live.runtime.engines.base import Engine, EngineInfo

Ability = Literal[
    "activations", "arrivals", "draft acceptance", "draft updates", "expert copies", "images", "part sums", "sleep", "text",
    "timed updates",
]  # fmt: skip


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
    """Return why an engine cannot decode given tokens (`RemoteEngine.score_by_decode`); "" if it can."""
    is_free = info.facts.get("follows") == "False"
    return (
        f"{info.name} cannot be made to decode given tokens: it speculates, or gives processed logprobs"
        if is_free
        else ""
    )


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


def _refuse_timing(info: EngineInfo) -> str:
    return "" if info.name == "vllm" else f"{info.name} fills no memory in an update"


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
    "timed updates": _Row(("time_updates",), "fills no memory in an update", _refuse_timing),
}
"""Ability → its conditions. The engines have all methods; one of a user's own may lack some."""


def why_unable(engine: Engine, ability: Ability) -> str:
    """Return why an engine cannot do this here; "" if it can."""
    row = ABILITIES[ability]
    if not all(hasattr(engine, method) for method in row.methods):
        return f"{engine.info.name} {row.lacks}"
    return row.refuse(engine.info)


def find_able(engine: Engine, ability: Ability) -> Engine | None:
    """Return the engine; None if it cannot do this here."""
    return None if why_unable(engine, ability) else engine
