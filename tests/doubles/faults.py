"""Starts engines with a worker that can be told to have a fault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ckptcheck.live.runtime.engines.remote import RemoteEngine
from ckptcheck.live.runtime.engines.sglang import SglangEngine
from ckptcheck.live.runtime.engines.vllm import VllmEngine
from tests.paths import DOUBLES


@contextmanager
def faulty_engines() -> Iterator[None]:
    """Engines that start in this block can have faults."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VllmEngine, "module", DOUBLES / "faulty_vllm.py")
        patch.setattr(SglangEngine, "module", DOUBLES / "faulty_sglang.py")
        yield


def flip_bit(engine: RemoteEngine[Any], name: str, index: int, bit: int) -> None:
    """Flip a bit of a tensor on every rank of an engine that was started with `faulty_engines`."""
    engine._call_ranks("flip_bit", name, index, bit)


def set_number(engine: RemoteEngine[Any], module: str, name: str, value: float) -> None:
    """Set a number that a module keeps on the host, on every rank of such an engine."""
    engine._call_ranks("set_number", module, name, value)
