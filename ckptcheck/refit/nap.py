"""A cycle of sleep and wake around a refit, as jobs have it that train and sample on the same GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from ckptcheck.engines.base import Engine, Manifest

WEIGHTS, REST = ("weights",), ("kv_cache", "cuda_graph")
"""What such jobs take back before a sync, where weights were dropped, and after it."""


class Sleeper(Protocol):
    """An engine that can give its device memory away and take it again, weights and all."""

    def sleep(self, level: int = 1) -> None:
        """Give it away; 1: the weights are kept on the host, 2: they are dropped, for a sync brings others."""
        ...

    def wake(self, tags: Sequence[str] | None = None) -> None:
        """Take it again. tags: a part of it, weights, kv_cache or cuda_graph; what the engine does not have is left out."""
        ...


@dataclass(frozen=True)
class Nap:
    """What an engine held before it slept and after it woke. freed: bytes of memory that sleep gave away.

    level: 2 where weights were dropped, so that only buffers can be compared. idle: why the sleep gave nothing away.
    """

    before: Manifest = field(default_factory=dict)
    after: Manifest = field(default_factory=dict)
    freed: int = 0
    level: int = 1
    idle: str = ""

    @property
    def lost(self) -> list[str]:
        """The names of what is not what it was."""
        return sorted({
            name
            for (rank, name), entry in self.before.items()
            if (self.level == 1 or entry.kind == "buffer")
            and ((rank, name) not in self.after or self.after[rank, name].digest != entry.digest)
        })  # fmt: skip


def sleeper(engine: Engine) -> Sleeper | str:
    """Return the engine as one that sleeps, or why it does not."""
    if not (hasattr(engine, "sleep") and hasattr(engine, "wake")):
        return f"{engine.info.name} is not put to sleep here"
    if idle(engine) and engine.info.name != "sglang":  # SGLang puts buffers away and back on a CPU too
        return idle(engine)
    if engine.info.facts.get("sleep") == "False" and not idle(engine):
        return f"{engine.info.name} was not started so that it can sleep"
    return cast(Sleeper, engine)


def idle(engine: Engine) -> str:
    """Say why a sleep gives no memory away, "" where it may."""
    return f"the sleep of {engine.info.name} does nothing on a CPU" if engine.info.facts.get("device") == "cpu" else ""
