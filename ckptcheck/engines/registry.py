"""The engines that can be started, by the name a user gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ckptcheck.engines.base import Engine
from ckptcheck.errors import CkptcheckError


def _vllm(
    checkpoint: Path, *, dtype: str, ranks: int, mode: str, length: int, python: Path | None, **more: Any
) -> Engine:
    from ckptcheck.engines.vllm import Mode, VllmEngine, VllmOptions

    if mode not in ("plain", "stock"):
        raise CkptcheckError(f"vLLM has no mode {mode}", "there are plain and stock")
    return VllmEngine(checkpoint, VllmOptions(dtype, ranks, cast(Mode, mode), length), python=python, **more)


ENGINES: Mapping[str, Callable[..., Engine]] = {"vllm": _vllm}


def start(
    name: str,
    checkpoint: Path,
    *,
    dtype: str = "float32",
    ranks: int = 1,
    mode: str = "plain",
    length: int = 512,
    python: Path | None = None,
    log: Path | None = None,
    scratch: Sequence[Path] = (),
) -> Engine:
    """Start an engine with a checkpoint.

    dtype: as the engine calls it. ranks: of tensor parallelism. mode: plain, or stock as the engine comes. length: tokens
    of the longest sequence with what is decoded. python: the user's own interpreter. Raises CkptcheckError for a name that
    is not known and an engine that is not installed, and what a Host raises where it does not start.
    """
    if name not in ENGINES:
        raise CkptcheckError(f"there is no engine {name}", f"there is {', '.join(ENGINES)}")
    return ENGINES[name](
        checkpoint, dtype=dtype, ranks=ranks, mode=mode, length=length, python=python, log=log, scratch=scratch
    )
