"""How an engine in a process of its own is told to load a checkpoint, and what it then says of itself: alike for all engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ckptcheck.engines.base import EngineInfo
from ckptcheck.engines.switches import Switches, untaken
from ckptcheck.host.host import Host
from ckptcheck.host.patience import otherwise

LOAD = 900.0
"""Seconds for a checkpoint to load: the first start on a cold disk takes a minute before it begins."""

Mode = Literal["plain", "stock"]


@dataclass(frozen=True)
class EngineOptions:
    """How an engine is started. mode: plain where it is changed to be readable on a CPU, stock where it is left as it is.

    dtype: float32, bfloat16, float16 or auto. ranks: of tensor parallelism. length: tokens of the longest sequence with what is
    decoded. switches: how it is set up. more: further arguments of the engine's own.
    """

    dtype: str = "float32"
    ranks: int = 1
    mode: Mode = "plain"
    length: int = 512
    switches: Switches = field(default_factory=Switches)
    more: Mapping[str, Any] = field(default_factory=dict)


def load(
    host: Host, name: str, checkpoint: Path, options: EngineOptions, timeout: float | None, **own: Any
) -> tuple[EngineInfo, Mapping[str, str]]:
    """Have the process load a checkpoint; return what it says of itself, and the switches that it did not take → why.

    name: as the engine spells itself (vLLM). timeout: seconds, None for `LOAD` or what a block around it leaves
    (host/patience.py). own: what only this engine is told. Raises what `Host.call` raises.
    """
    said = host.call(
        "start",
        timeout=otherwise(LOAD) if timeout is None else timeout,
        model=str(checkpoint.resolve()),
        dtype=options.dtype,
        ranks=options.ranks,
        plain=options.mode == "plain",
        length=options.length,
        switches=options.switches.given(),
        options=dict(options.more),
        **own,
    )
    facts = said["facts"]
    info = EngineInfo(name.lower(), said["version"], said["dtype"], said["ranks"], said["architecture"], facts)
    where = f"{name} {said['version']} on {facts['device'].upper()}"
    return info, untaken(options.switches, said["switches"], where)
