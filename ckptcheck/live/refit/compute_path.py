"""Finds the module in which an engine computes otherwise than the same engine started cold from the same weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from ckptcheck.live.runtime.engines.activations import Activations
from ckptcheck.live.runtime.engines.base import Running

TOLERANCE = 1e-5
"""Difference, relative to the largest number of a module's output, that another run of the same kernels may show."""


@runtime_checkable
class Capturing(Running, Protocol):
    """An engine that can capture the outputs of its modules."""

    def capture_activations(self, tokens: Sequence[int], folder: Path) -> Activations:
        """Return the output of every module for a prompt, in the order of execution. folder: for temporary files."""
        ...

    def reset_prefix_cache(self) -> None:
        """Drop all cached keys and values."""
        ...


@dataclass(frozen=True)
class ModuleDifference:
    """The first module whose output differs; `module` is "" where none does."""

    module: str
    """Its name in the Hugging Face model, ``model.layers.3.self_attn.q_proj``."""
    most: float = 0.0
    """The largest difference of its output."""
    compared: int = 0
    """Modules that both captured."""
    relation: str = ""
    """How its output is related to what it should be, "" where no simple relation holds."""


def find_first_difference(
    engine: Capturing, start_cold: Callable[[], Running], tokens: Sequence[int], folder: Path
) -> ModuleDifference | None:
    """Send one prompt through both, and compare what their modules put out; None if the cold one cannot capture.

    start_cold: starts the engine once more from the weights that it should hold. Raises what the engines raise.
    """
    engine.reset_prefix_cache()
    found = engine.capture_activations(tokens, folder)
    cold = start_cold()
    try:
        return (
            compare_activations(found, cold.capture_activations(tokens, folder))
            if isinstance(cold, Capturing)
            else None
        )
    finally:
        cold.close()


def compare_activations(found: Activations, expected: Activations) -> ModuleDifference:
    """Return the first module, in the order of execution, whose output differs beyond the noise of a repeated run."""
    import numpy as np

    from ckptcheck.compare.activations.relation import describe_relation

    shared = [point for point in expected if point in found and found[point].shape == expected[point].shape]
    for point in shared:
        difference = np.abs(found[point] - expected[point])
        most = float(difference.max(initial=0.0))
        scale = float(np.abs(expected[point]).max(initial=0.0))
        if not most <= TOLERANCE * max(scale, 1e-6):  # NaN too
            return ModuleDifference(point, most, len(shared), describe_relation(point, expected, found) or "")
    return ModuleDifference("", 0.0, len(shared))
