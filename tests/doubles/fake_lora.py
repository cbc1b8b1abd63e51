"""An engine in memory that serves LoRA adapters, with what can be wrong with that. For tests of what finds it."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal

from ckptcheck.live.runtime.engines.base import EngineInfo, SequenceScores, TensorDigest, TensorDigests
from ckptcheck.live.runtime.process.errors import RemoteError

AdapterFault = Literal[
    "unapplied",  # requests with an adapter get the base model
    "doubled",  # the adapter counts twice
    "mixed",  # a slot that another adapter had keeps one of its tensors
    "other slot",  # after an eviction, requests compute with another slot
    "sticky",  # requests without an adapter get a part of the last one
    "stale",  # an adapter that was loaded again is the old one
    "half stale",  # one of its tensors is
    "off",  # it is right, and logprobs are not
    "by name",  # the prefix cache knows adapters by their name only
    "deaf",  # the prefix cache is never reset
    "refuses",  # a second adapter of a name is refused
]
Pair = tuple[float, float]


class FakeAdapterEngine:
    """Serves a base model that is one number, and adapters that are two, which it adds. slots: adapters that it holds."""

    def __init__(self, checkpoint: Path, faults: Collection[AdapterFault] = (), slots: int = 2) -> None:
        self.info = EngineInfo("fake", "1", "float32", 1, "FakeForCausalLM", {})
        self._base, self._faults, self._count = float((checkpoint / "base").read_text()), set(faults), slots
        self._paths: dict[str, Path] = {}
        self._loads: dict[str, int] = {}
        self._slots: dict[str, Pair] = {}
        self._freed: list[Pair] = []
        self._cache: dict[tuple[object, ...], float] = {}
        self._replaced = False

    def load_adapter(self, name: str, folder: Path, update: str = "reload") -> None:
        if name in self._paths:
            if "refuses" in self._faults:
                raise RemoteError("fake", "load_adapter", "RuntimeError", "the name is taken", "")
            self._replaced = True
            if update == "same":
                self._paths[name] = folder
                return
            old = self._slots.pop(name, None)
            if old is not None and "half stale" in self._faults:
                self._slots[name] = (_read(folder)[0], old[1])
            elif old is not None and "stale" in self._faults:
                self._slots[name] = old
        self._paths[name] = folder
        self._loads[name] = self._loads.get(name, 0) + 1

    def score_with_adapter(
        self, sequences: Sequence[Sequence[int]], adapter: str, *, decode: int = 0
    ) -> list[SequenceScores]:
        value = self._base + self._shift(adapter)
        return [self._score(tuple(tokens), adapter, value, decode) for tokens in sequences]

    def _shift(self, adapter: str) -> float:
        if not adapter:
            return 0.1 if "sticky" in self._faults and self._freed else 0.0
        if adapter not in self._slots:
            values = _read(self._paths[adapter])
            if len(self._slots) == self._count:
                self._freed.append(self._slots.pop(next(iter(self._slots))))
            if self._freed and "mixed" in self._faults:
                values = (values[0], self._freed[-1][0])
            self._slots[adapter] = values
        shift = sum(self._slots[adapter])
        if "unapplied" in self._faults:
            return 0.0
        if "other slot" in self._faults and self._freed and not self._replaced:
            shift = sum(next(iter(self._slots.values())))
        return shift * (2 if "doubled" in self._faults else 1) + 0.1 * ("off" in self._faults and self._replaced)

    def _score(self, tokens: tuple[int, ...], adapter: str, value: float, decode: int) -> SequenceScores:
        key = (tokens, adapter, 0 if "by name" in self._faults else self._loads.get(adapter, 0))
        cached = decode and key in self._cache
        decoded = self._cache.setdefault(key, value) if decode else value
        prompt = tuple(-1.0 - value * (1 + token % 3) for token in tokens[1:])
        return SequenceScores(prompt, (1,) * decode, (-decoded,) * decode, len(tokens) - 1 if cached else 0)

    def digest_adapter(self, name: str) -> TensorDigests:
        values = self._slots.get(name, ())
        names = ("layers.0.q_proj.lora_A", "layers.0.q_proj.lora_B")
        return {
            (0, part): TensorDigest(part, 0, "derived", "F32", (1,), 4, repr(value), "")
            for part, value in zip(names, values, strict=False)
        }

    def write_merged(self, checkpoint: Path, adapter: Path, folder: Path, *, nudge: bool = False) -> None:
        folder.mkdir()
        base = float((checkpoint / "base").read_text()) + sum(_read(adapter))
        (folder / "base").write_text(repr(base + 1e-8 * nudge))

    def write_variant(self, adapter: Path, folder: Path, seed: int) -> None:
        folder.mkdir()
        (folder / "adapter").write_text(json.dumps([0.01 * seed, 0.03 * seed]))

    def reset_prefix_cache(self) -> None:
        if "deaf" not in self._faults:
            self._cache.clear()

    def close(self) -> None:
        pass


def _read(folder: Path) -> Pair:
    one, other = json.loads((folder / "adapter").read_text())
    return float(one), float(other)
