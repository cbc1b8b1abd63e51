"""Sleep and wake around a sync, as in jobs that train and sample on the same GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from ckptcheck.live.refit.host_scalars import same_number
from ckptcheck.live.runtime.engines.base import HostScalars, Running, TensorDigests

WEIGHTS, REST = ("weights",), ("kv_cache", "cuda_graph")
"""What such jobs wake before a sync (if the engine dropped its weights), and after it."""


class SleepingEngine(Protocol):
    """An engine that can release its device memory and allocate it again."""

    def sleep(self, level: int = 1) -> None:
        """Release the memory. Level 1 keeps the weights on the host; level 2 drops them, because a sync brings new ones."""
        ...

    def used_memory(self) -> int:
        """Return the bytes that are taken on its devices: what a sleep releases, torch's own numbers do not show."""
        ...

    def wake(self, tags: Sequence[str] | None = None) -> None:
        """Allocate the memory again. tags: these parts only (weights, kv_cache, cuda_graph), as far as the engine has them."""
        ...


@dataclass(frozen=True)
class SleepCheck:
    """What an engine held before it slept and after it woke."""

    before: TensorDigests = field(default_factory=dict)
    after: TensorDigests = field(default_factory=dict)
    freed_bytes: int = 0
    level: int = 1
    """2 if the engine dropped its weights, so that only buffers can be compared."""
    no_op_reason: str = ""
    """Why the sleep released no memory."""
    scalars_before: HostScalars = field(default_factory=dict)
    """Numbers that the engine kept on the host."""
    scalars_after: HostScalars = field(default_factory=dict)

    @property
    def changed_tensors(self) -> list[str]:
        """Names of the tensors that differ after the sleep, or are gone."""
        return sorted({
            name
            for (rank, name), entry in self.before.items()
            if (self.level == 1 or entry.kind == "buffer")
            and ((rank, name) not in self.after or self.after[rank, name].digest != entry.digest)
        })  # fmt: skip

    @property
    def changed_scalars(self) -> list[str]:
        """Names of the numbers on the host that differ after the sleep, or are gone, at any level."""
        after = self.scalars_after
        return sorted({key[1] for key, value in self.scalars_before.items() if not same_number(value, after.get(key))})


def find_sleeping_engine(engine: Running) -> SleepingEngine | str:
    """Return the engine as one that can sleep, or the reason why it cannot."""
    if not (hasattr(engine, "sleep") and hasattr(engine, "wake")):
        return f"{engine.info.name} is not put to sleep here"
    # SGLang moves its buffers out and back on a CPU too
    if no_op_reason(engine) and engine.info.name != "sglang":
        return no_op_reason(engine)
    if engine.info.facts.get("sleep") == "False" and not no_op_reason(engine):
        return f"{engine.info.name} was not started so that it can sleep"
    return cast(SleepingEngine, engine)


def no_op_reason(engine: Running) -> str:
    """Return why a sleep releases no memory, "" if it may."""
    return f"the sleep of {engine.info.name} does nothing on a CPU" if engine.info.facts.get("device") == "cpu" else ""
