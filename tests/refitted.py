"""Plays a trial with a fake engine that has faults, and a fake trainer that has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from ckptcheck.engines import fake_model as model
from ckptcheck.engines.base import Engine, Parcel
from ckptcheck.engines.digest import digest
from ckptcheck.engines.fake import FakeEngine, Fault
from ckptcheck.refit.settings import Settings
from ckptcheck.refit.trace import RefitTrace
from ckptcheck.refit.trial import Trial
from ckptcheck.trainers.base import Step, TrainerInfo, Weight

LAYERS, VOCABULARY = 3, 32


def weights() -> dict[str, np.ndarray]:
    """Return a tiny model: attention with fused parts, experts, norms."""
    shapes: dict[str, tuple[int, ...]] = {model.EMBED: (VOCABULARY, 8), model.HEAD: (VOCABULARY, 8)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        shapes[f"{at}.input_layernorm.weight"] = (8,)
        for part, rows in (("q", 8), ("k", 4), ("v", 4), ("o", 8)):
            shapes[f"{at}.self_attn.{part}_proj.weight"] = (rows, 8)
        for expert in (0, 1):
            for part, shape in (("gate", (6, 8)), ("up", (6, 8)), ("down", (8, 6))):
                shapes[f"{at}.mlp.experts.{expert}.{part}_proj.weight"] = shape
    draw = np.random.default_rng(0)
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


class FakeTrainer:
    """Holds weights as the fake engine computes with them. unsteady: its second forward pass differs.

    unlike: it has two ranks, whose copies of a norm differ from that step on.
    """

    info = TrainerInfo("fake", "1", "float32", "", "FakeForCausalLM")

    def __init__(self, folder: Path, *, unsteady: bool = False, apart: bool = False, unlike: int | None = None) -> None:
        self._held, self._folder = weights(), folder
        self._number, self._passes = 0, 0
        self._unsteady, self._apart = unsteady, apart
        self._steps, self._unlike = 0, unlike
        if unlike is not None:
            self.info = replace(self.info, layout="TP2")

    def weights(self) -> list[Weight]:
        return [Weight(name, values.shape, "F32") for name, values in self._held.items()]

    def score(self, sequences: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
        self._passes += 1
        moved = (1e-3 if self._apart else 0.0) + (1e-7 * self._passes if self._unsteady else 0.0)
        scored = self._cold().score(sequences)
        return [tuple(value - moved for value in each.prompt) for each in scored]

    def greedy(self, tokens: Sequence[int], number: int) -> tuple[int, ...]:
        return self._cold().score([tokens], decode=number)[0].decoded

    def step(self, sequences: Sequence[Sequence[int]], *, seed: int = 0) -> Step:
        self.perturb(0.05, seed=seed)
        return Step(1.0, 1.0)

    def perturb(self, scale: float, *, seed: int = 0) -> None:
        self._steps += 1
        draw = np.random.default_rng(seed)
        self._held = {
            name: (values * (1 + scale * draw.standard_normal(values.shape))).astype(np.float32)
            for name, values in self._held.items()
        }

    def plan(self, bucket_bytes: int) -> list[Parcel]:
        return self.export(bucket_bytes)

    def export(self, bucket_bytes: int) -> list[Parcel]:
        groups: list[dict[str, np.ndarray]] = [{}]
        for name, values in self._held.items():
            if groups[-1] and sum(each.nbytes for each in groups[-1].values()) + values.nbytes > bucket_bytes:
                groups.append({})
            groups[-1][name] = values
        parcels = []
        for group in groups:
            self._number += 1
            path = self._folder / f"bucket{self._number}.safetensors"
            save_file(group, path)
            shapes = tuple(values.shape for values in group.values())
            nbytes = sum(values.nbytes for values in group.values())
            parcels.append(Parcel({"path": str(path)}, tuple(group), ("F32",) * len(group), shapes, nbytes))
        return parcels

    def send(self, group: Mapping[str, Any], bucket_bytes: int) -> None:
        raise NotImplementedError

    def digests(self) -> dict[str, str]:
        return {name: digest(values) for name, values in self._held.items()}

    def replicas(self) -> tuple[str, ...]:
        return ("decoder.final_layernorm.weight",) if self._unlike is not None and self._steps >= self._unlike else ()

    def save(self, folder: Path) -> None:
        save_file(self._held, folder / "model.safetensors")

    def close(self) -> None:
        pass

    def _cold(self) -> FakeEngine:
        return FakeEngine(self._held)


def played(table: Mapping[str, Any], folder: Path) -> RefitTrace:
    """Play the trial of a case: `faults` of the engine, `ranks`, `draft`, `trainer` with what is wrong with it, `settings`."""
    folder.mkdir(exist_ok=True)
    faults = [Fault(**fault) for fault in table.get("faults", [])]
    started: list[bool] = []

    def start(checkpoint: Path) -> Engine:
        """Start the engine; the first one has the faults, those that give the reference have none."""
        own = [] if started else faults
        started.append(True)
        tensors = load_file(checkpoint / "model.safetensors")
        return FakeEngine(tensors, own, ranks=table.get("ranks", 1), draft=table.get("draft", False))

    trainer = FakeTrainer(folder, **table.get("trainer", {}))
    settings = Settings(**{"bucket_bytes": 1000, "other_bytes": 300, "decode": 4, **table.get("settings", {})})
    block = 4 if table.get("cache") else 0
    return Trial("trial", lambda: trainer, start, settings, vocabulary=VOCABULARY, block=block, folder=folder).run()
