"""The engines that can be started, by the name a user gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args

from ckptcheck.engines import lacking
from ckptcheck.engines.base import Engine
from ckptcheck.engines.cache import room
from ckptcheck.engines.context import usual
from ckptcheck.engines.loading import Mode
from ckptcheck.engines.switches import Switches
from ckptcheck.errors import CkptcheckError
from ckptcheck.host.trouble import VerbError


def _vllm(
    checkpoint: Path,
    *,
    dtype: str,
    ranks: int,
    mode: str,
    length: int,
    together: int,
    switches: Switches,
    transport: str,
    sleep_level: int,
    python: Path | None,
    instead: Engine | None,
    **more: Any,
) -> Engine:
    from ckptcheck.engines.vllm import VllmEngine, VllmOptions

    _, cache = room(checkpoint, length, together, dtype)
    options = VllmOptions(dtype, ranks, cast(Mode, mode), length, switches, cache_bytes=cache, transport=transport)
    if isinstance(instead, VllmEngine):
        instead.restart(checkpoint, options)
        return instead
    if instead is not None:
        instead.close()
    return VllmEngine(checkpoint, options, python=python, **more)


def _sglang(
    checkpoint: Path,
    *,
    dtype: str,
    ranks: int,
    mode: str,
    length: int,
    together: int,
    switches: Switches,
    transport: str,
    sleep_level: int,
    python: Path | None,
    instead: Engine | None,
    **more: Any,
) -> Engine:
    from ckptcheck.engines.sglang import TOKENS, SglangEngine, SglangOptions

    tokens, _ = room(checkpoint, length, together, dtype)
    options = SglangOptions(
        dtype, ranks, cast(Mode, mode), length, switches, tokens=max(tokens, TOKENS), sleep_level=sleep_level
    )
    if isinstance(instead, SglangEngine) and instead.options.mode == mode:
        instead.restart(checkpoint, options)
        return instead
    if instead is not None:
        instead.close()
    return SglangEngine(checkpoint, options, python=python, **more)


ENGINES: Mapping[str, Callable[..., Engine]] = {"vllm": _vllm, "sglang": _sglang}


def routes(name: str) -> tuple[str, ...]:
    """Return how weights can reach an engine, the usual way first. Raises CkptcheckError for a name that is not known."""
    if name == "vllm":
        from ckptcheck.engines.vllm import VllmEngine

        return VllmEngine.transports
    if name == "sglang":
        from ckptcheck.engines.sglang import SglangEngine

        return SglangEngine.transports
    raise CkptcheckError(f"there is no engine {name}", f"there is {', '.join(ENGINES)}")


def route(name: str, wanted: str | None) -> str:
    """Return the way that was asked for, the usual one where none was. Raises CkptcheckError for one that it has not."""
    known = routes(name)
    if wanted is not None and wanted not in known:
        raise CkptcheckError(f"weights do not reach {name} by {wanted}", f"there is {', '.join(known)}")
    return wanted or known[0]


UNDER_WAY = {"vllm": "reload", "sglang": "tensor"}
"""By which transport an engine is updated while requests run."""


def pause(name: str, wanted: str | None, transport: str, sleep_level: int = 1) -> str:
    """Return what becomes of requests that run when weights come, "" where none was asked for.

    Raises CkptcheckError for what the engine cannot do, by that transport, and around a sleep at that level.
    """
    if wanted is None:
        return ""
    from ckptcheck.engines.sglang import SglangEngine
    from ckptcheck.engines.vllm import VllmEngine

    known = (VllmEngine if name == "vllm" else SglangEngine).pauses
    if wanted not in known:
        raise CkptcheckError(f"{name} does not {wanted} requests", f"there is {', '.join(known)}")
    if transport != UNDER_WAY[name]:
        raise CkptcheckError(f"requests run beside {UNDER_WAY[name]} only", f"--transport {UNDER_WAY[name]}")
    if sleep_level == 2:
        raise CkptcheckError(
            "--pause needs the cache, which with --sleep-level 2 the engine has again after the sync only"
        )
    return wanted


def start(
    name: str,
    checkpoint: Path,
    *,
    dtype: str = "float32",
    ranks: int = 1,
    mode: str = "plain",
    length: int | None = None,
    together: int = 1,
    switches: Switches | None = None,
    transport: str = "",
    sleep_level: int = 1,
    python: Path | None = None,
    gpus: str | None = None,
    instead: Engine | None = None,
    log: Path | None = None,
    scratch: Sequence[Path] = (),
) -> Engine:
    """Start an engine with a checkpoint.

    dtype: as the engine calls it. ranks: of tensor parallelism. mode: plain, or stock as the engine comes. length: tokens of
    the longest sequence with what is decoded, None for those of context.py. together: as many of them its cache has room
    for at once. switches: how it is set up; those that it does not take are in its `ignored`. transport: by which weights
    will come, where that is known; an engine on GPUs may have to be started for it. sleep_level: at which it will sleep, 1
    keeps its weights on the host and 2 drops them. python: the user's own interpreter. gpus: see host/gpus.py. instead: a
    running engine that is given up for this one, whose process may be used. Raises CkptcheckError for a name that is not
    known and an engine that is not installed, and what a Host raises where it does not start.
    """
    if name not in ENGINES:
        raise CkptcheckError(f"there is no engine {name}", f"there is {', '.join(ENGINES)}")
    if mode not in get_args(Mode):
        raise CkptcheckError(f"an engine has no mode {mode}", f"there is {', '.join(get_args(Mode))}")
    try:
        return ENGINES[name](
            checkpoint,
            dtype=dtype,
            ranks=ranks,
            mode=mode,
            length=usual(checkpoint) if length is None else length,
            together=together,
            switches=switches or Switches(),
            transport=transport,
            sleep_level=sleep_level,
            python=python,
            gpus=gpus,
            instead=instead,
            log=log,
            scratch=scratch,
        )
    except VerbError as error:
        if (what := lacking.hint(name, error.said)) is not None:
            error.message, error.hint = error.message.rstrip("."), what
        raise
