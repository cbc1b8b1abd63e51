"""A trainer and an engine of a few small arrays, for what watches them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ckptcheck.live.runtime.engines.digest import digest

NAMES = [f"model.layers.{layer}.mlp.{part}.weight" for layer in range(3) for part in ("up_proj", "down_proj")]


class Trainer:
    """Holds weights; every step changes all of them but those in `frozen`."""

    def __init__(self) -> None:
        self.weights = {name: np.full((4, 4), number, np.float32) for number, name in enumerate(NAMES)}
        self.step_number = 0

    def step(self, frozen: tuple[str, ...] = ()) -> None:
        self.step_number += 1
        for name in self.weights.keys() - set(frozen):
            self.weights[name] = self.weights[name] + 0.5

    def export(self) -> Iterator[tuple[str, Any]]:
        yield from self.weights.items()


class Engine:
    """Takes weights, all but those in `deaf`. It tells digests and a version, or raises what is in `broken`."""

    name, alike = "toy", True

    def __init__(self) -> None:
        self.weights: dict[str, Any] = {}
        self.deaf: tuple[str, ...] = ()
        self.number = 0
        self.broken: Exception | None = None

    def update(self, weights: Any) -> None:
        for name, values in weights:
            if name not in self.deaf:
                self.weights[name] = values.copy()
        self.number += 1

    def held(self) -> Mapping[str, str]:
        if self.broken:
            raise self.broken
        return {f"0/{name}": digest(values) for name, values in self.weights.items()}

    def version(self) -> str | None:
        return str(self.number)
