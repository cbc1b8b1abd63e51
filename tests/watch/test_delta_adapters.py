"""The adapters of slime and verl see what their delta engines send: the weights, and the delta made of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from ckptcheck.watch import Watch, adapters

Weights = dict[str, np.ndarray[Any, Any]]


def train(weights: Weights) -> Weights:
    return {name: tensor + np.float32(1) for name, tensor in weights.items()}


def make_weights() -> Weights:
    return {"a.weight": np.zeros((64, 32), np.float32), "b.weight": np.ones(4096, np.float32)}


@dataclass
class DiskDelta:
    """slime's UpdateWeightFromDiskDelta (624b824a8): the first call takes a snapshot, each later one publishes what changed."""

    weights: Weights
    stands_still: bool = False
    weight_version: int = 0
    published: list[Weights] = field(default_factory=list)
    _baseline_captured: bool = False
    _snapshot: Weights = field(default_factory=dict)
    _delta: Weights = field(default_factory=dict)

    def _on_chunk(self, hf_chunk: Any) -> None:
        raise AssertionError("a delta is not broadcast")

    def _iter_hf_tensors(self) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        yield from self.weights.items()

    def update_weights(self) -> None:
        if not self._baseline_captured:
            self._snapshot = {name: tensor.copy() for name, tensor in self._iter_hf_tensors()}
            self._baseline_captured = True
            return
        self.weight_version += 1
        self._delta = {}
        for name, tensor in self._iter_hf_tensors():
            change = (tensor.view(np.uint8) ^ self._snapshot[name].view(np.uint8)).reshape(-1)
            if change.any():
                self._delta[name] = change
            if not self.stands_still:
                self._snapshot[name] = tensor.copy()
        self.published.append(self._delta)


def test_slime_shows_every_tensor_and_the_delta() -> None:
    watch, updater = Watch(background=False), DiskDelta(make_weights())
    adapters.slime(updater, watch)
    for _ in range(3):
        updater.update_weights()
        updater.weights = train(updater.weights)
    assert len(watch.last) == 2  # the first call publishes nothing
    assert [sync.version for sync in watch.last] == ["1", "2"]
    for sync in watch.last:
        assert set(sync.sent) == {"a.weight", "b.weight"}
        assert list(sync.payload) == ["0.a.weight", "0.b.weight"]
        assert not sync.partial
    assert len(updater.published) == 2


def test_a_tensor_that_slime_leaves_out_of_its_delta_is_seen() -> None:
    """The digests of what was gathered say that it changed, those of what was published say that it was not sent."""
    watch, updater = Watch(background=False), DiskDelta(make_weights())
    adapters.slime(updater, watch)
    updater.update_weights()
    updater.weights = train(updater.weights)
    updater._snapshot["b.weight"] = updater.weights["b.weight"]
    updater.update_weights()
    sync = watch.last[-1]
    assert "b.weight" in sync.sent
    assert "0.b.weight" not in sync.payload


@dataclass
class Param:
    name: str
    shape: list[int]
    val_start: int
    val_end: int


@dataclass
class Flush:
    """verl's DeltaFlush (1dda039b9)."""

    encoding: str
    params: list[Param]
    positions_cpu: np.ndarray[Any, Any]
    values_gpu: np.ndarray[Any, Any]
    checksum: int = 0


@dataclass
class DeltaSharded:
    """The calls of verl's DeltaShardedCheckpointEngine (1dda039b9): a seed, then flushes, and a sweep where it is due."""

    sent: list[str] = field(default_factory=list)
    seeded: bool = False
    verify: bool = False

    def _publish_flush(self, flush: Flush, first: bool, is_last: bool) -> None:
        self.sent.append("flush")

    def _publish_values_flush(self, params: list[Param], values: Any, is_last: bool, verify: bool = False) -> None:
        self.sent.append("sweep" if verify else "seed")

    def _send_whole(self, weights: Weights, verify: bool = False) -> None:
        params, at = [], 0
        for name, tensor in weights.items():
            params.append(Param(name, list(tensor.shape), at, at + tensor.size))
            at += tensor.size
        values = np.concatenate([tensor.reshape(-1) for tensor in weights.values()])
        self._publish_values_flush(params, values, is_last=True, verify=verify)

    async def send_weights(self, engine: Any, global_steps: int | None = None) -> None:
        weights = engine.get_per_tensor_param()
        if not self.seeded:
            self.seeded = True
            self._send_whole(weights)
            return
        for name, tensor in weights.items():
            places = np.arange(0, tensor.size, 2, dtype=np.int32)
            params = [Param(name, list(tensor.shape), 0, len(places))]
            flush = Flush("indices", params, places.view(np.uint8), tensor.reshape(-1)[places])
            self._publish_flush(flush, first=False, is_last=False)
        if self.verify:
            self._send_whole(weights, verify=True)


@dataclass
class Engine:
    weights: Weights

    def get_per_tensor_param(self) -> Weights:
        return self.weights


def test_verl_shows_its_seed_its_flushes_and_its_sweep(recwarn: pytest.WarningsRecorder) -> None:
    watch, sender, engine = Watch(background=False), DeltaSharded(), Engine(make_weights())
    adapters.verl(sender, watch)
    for step in range(3):
        sender.verify = step == 2
        asyncio.run(sender.send_weights(engine, global_steps=step))
        engine.weights = train(engine.weights)
    seed, flushes, sweep = watch.last
    assert sender.sent == ["seed", "flush", "flush", "flush", "flush", "sweep"]
    assert (set(seed.sent), seed.payload) == ({"a.weight", "b.weight"}, {})
    places = ["0.positions_cpu", "0.values_gpu", "1.positions_cpu", "1.values_gpu"]
    assert (flushes.sent, list(flushes.payload)) == ({}, places)
    assert (set(sweep.sent), list(sweep.payload)) == ({"a.weight", "b.weight"}, places)
    assert seed.sent["a.weight"] != sweep.sent["a.weight"]
    assert not [str(warning.message) for warning in recwarn if "does not see" in str(warning.message)]


def test_verls_sender_whose_snapshot_stands_still_is_named() -> None:
    found: list[str] = []
    watch = Watch(on=lambda finding: found.append(finding.code), background=False)
    sender, engine = DeltaSharded(seeded=True), Engine(make_weights())
    adapters.verl(sender, watch)
    for step in range(2):
        asyncio.run(sender.send_weights(engine, global_steps=step))
    assert found == ["HIS018"]
