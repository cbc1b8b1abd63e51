"""A cycle of sleep and wake around a refit, as jobs have it that train and sample on the same GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, cast

from ckptcheck.engines.base import Engine, Manifest


class Sleeper(Protocol):
    """An engine that can give its device memory away and take it again, weights and all."""

    def sleep(self, level: int = 1) -> None:
        """Give it away; 1: the weights are kept on the host."""
        ...

    def wake(self) -> None:
        """Take it again."""
        ...


@dataclass(frozen=True)
class Nap:
    """What an engine held before it slept and after it woke. freed: bytes of memory that sleep gave away."""

    before: Manifest = field(default_factory=dict)
    after: Manifest = field(default_factory=dict)
    freed: int = 0


def sleeper(engine: Engine) -> Sleeper | str:
    """Return the engine as one that sleeps, or why it does not."""
    if not (hasattr(engine, "sleep") and hasattr(engine, "wake")):
        return f"{engine.info.name} is not put to sleep here"
    if engine.info.facts.get("device") == "cpu":
        return f"the sleep of {engine.info.name} does nothing on a CPU"
    if engine.info.facts.get("sleep") == "False":
        return f"{engine.info.name} was not started so that it can sleep"
    return cast(Sleeper, engine)
