"""Transports for the conformance kit: a careful one, and some with a weakness each."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

SHAPES = {"embed": (8, 4), "layers.0.up": (6, 4), "layers.0.down": (4, 6), "norm": (4,), "head": (8, 4)}


class Careless:
    """Writes every bucket into the model as it comes, and never asks whether all came."""

    def __init__(self) -> None:
        self.model = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
        self.current = "0"
        self.coming = "0"

    def begin(self, version: str, names: Sequence[str]) -> None:
        self.coming = version

    def send(self, bucket: Mapping[str, Any]) -> None:
        for name, tensor in bucket.items():
            flat = tensor.reshape(-1)
            self.model[name].view(-1)[: flat.numel()] = flat

    def end(self) -> None:
        self.current = self.coming

    def tensors(self) -> Iterable[tuple[str, Any]]:
        return self.model.items()

    def version(self) -> str | None:
        return self.current


class Careful(Careless):
    """Keeps buckets aside, and installs them together once all of them are there, under a version that rises."""

    def __init__(self) -> None:
        super().__init__()
        self.aside: dict[str, Any] = {}
        self.expected: set[str] = set()
        self.is_open = False
        self.is_asleep = False

    def begin(self, version: str, names: Sequence[str]) -> None:
        if self.is_open:
            raise RuntimeError("an update is running")
        if version == self.current:
            raise ValueError(f"version {version} is served already")
        self.aside, self.expected, self.is_open = {}, set(names), True
        super().begin(version, names)

    def send(self, bucket: Mapping[str, Any]) -> None:
        for name, tensor in bucket.items():
            if name in self.aside or tensor.shape != self.model[name].shape:
                self.is_open = False
                raise ValueError(f"{name} came twice, or in another shape")
        self.aside.update(bucket)

    def end(self) -> None:
        self.is_open = False
        if self.aside.keys() != self.expected:
            raise ValueError(f"{len(self.expected - self.aside.keys())} tensors are missing")
        super().send(self.aside)
        super().end()

    def kill_sender(self) -> None:
        self.is_open = False

    def generate(self) -> Iterator[str | None]:
        while True:
            yield self.current

    def sleep(self) -> None:
        if self.is_open:
            raise RuntimeError("an update is running")

    def wake(self) -> None:
        pass


class Locked(Careful):
    """Never opens again after its sender died."""

    def kill_sender(self) -> None:
        pass


class Nameless(Careless):
    """Has no versions, also not for the tokens of a response, and hands out copies of its tensors."""

    def version(self) -> str | None:
        return None

    def generate(self) -> Iterator[str | None]:
        while True:
            yield None

    def tensors(self) -> Iterable[tuple[str, Any]]:
        return [(name, tensor.clone()) for name, tensor in self.model.items()]


class Forgetful(Careless):
    """Drops every norm."""

    def send(self, bucket: Mapping[str, Any]) -> None:
        super().send({name: tensor for name, tensor in bucket.items() if name != "norm"})


class Waiting(Careless):
    """Waits for ever in `end` where a bucket is missing, and lets its receiver be killed."""

    def begin(self, version: str, names: Sequence[str]) -> None:
        super().begin(version, names)
        self.left = set(names)

    def send(self, bucket: Mapping[str, Any]) -> None:
        super().send(bucket)
        self.left -= bucket.keys()

    def end(self) -> None:
        if self.left:
            threading.Event().wait()
        super().end()

    def kill_receiver(self) -> None:
        self.model = {}


class Broken(Careless):
    """Refuses every update."""

    def end(self) -> None:
        raise ConnectionError("no route to the receiver")
