"""Loads a checkpoint into an engine's worker and decodes the engine's report: the same for all engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ckptcheck.live.runtime.engines.base import EngineInfo
from ckptcheck.live.runtime.engines.engine_options import Switches, ignored_switches
from ckptcheck.live.runtime.process.client import WorkerClient
from ckptcheck.live.runtime.process.deadlines import default_timeout
from ckptcheck.text.file_io import real_path

LOAD_TIMEOUT = 900.0
"""Seconds to load a checkpoint: on a cold disk an engine takes a minute before it begins."""

NO_FACTS = frozenset({"logprobs", "text"})
"""Switches that say how rollouts are read, not how the engine computes."""
Mode = Literal["plain", "stock"]


@dataclass(frozen=True)
class LaunchOptions:
    """How an engine is started."""

    dtype: str = "float32"
    """float32, bfloat16, float16 or auto."""
    ranks: int = 1
    """Ranks of tensor parallelism."""
    mode: Mode = "plain"
    """plain: the engine is patched so that its weights are readable on a CPU; stock: the engine as installed."""
    context_len: int = 512
    """Tokens of the longest sequence, decoded tokens included."""
    switches: Switches = field(default_factory=Switches)
    extra_arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the engine's constructor."""
    transport: str = ""
    """The transport by which weights will come; "" if unknown. Some engines on GPUs must be started for it."""
    sleep_level: int = 1
    """The level at which the engine will sleep: 1 keeps its weights on the host, 2 drops them; 0 if it never sleeps."""


def load_checkpoint(
    worker: WorkerClient,
    engine: str,
    checkpoint: Path,
    options: LaunchOptions,
    timeout: float | None,
    engine_arguments: Mapping[str, Any],
) -> tuple[EngineInfo, Mapping[str, str]]:
    """Have the worker load a checkpoint; return the engine's report, and switch that it did not apply → why.

    engine: the engine's own spelling of its name (vLLM). timeout: seconds; None for `LOAD_TIMEOUT`, or the rest of the time budget
    around the call (process/deadlines.py). engine_arguments: further arguments of this engine's worker; they replace the common
    ones of the same name.

    Raises what `WorkerClient.call` raises.
    """
    arguments: dict[str, Any] = {
        "model": str(real_path(checkpoint)),
        "dtype": options.dtype,
        "ranks": options.ranks,
        "plain": options.mode == "plain",
        "context_len": options.context_len,
        "switches": options.switches.to_dict(),
        "options": dict(options.extra_arguments),
        **engine_arguments,
    }
    start_timeout = default_timeout(LOAD_TIMEOUT) if timeout is None else timeout
    reply = worker.call("start", timeout=start_timeout, **arguments)
    # under the neutral names, so that runs of two engines can be compared; its own facts may say the same in more detail
    applied = {"prefix_caching" if name == "prefix_cache" else name: value for name, value in reply["switches"].items()}
    recorded = {name: str(value) for name, value in applied.items() if name not in NO_FACTS and value is not None}
    facts = {**recorded, **reply["facts"]}
    info = EngineInfo(engine.lower(), reply["version"], reply["dtype"], reply["ranks"], reply["architecture"], facts)
    description = f"{engine} {reply['version']} on {facts['device'].upper()}"
    return info, ignored_switches(options.switches, reply["switches"], description)
