"""An engine in memory that can have every fault of a weight update. For tests of what finds them; it checks nothing real."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.live.runtime.engines.base import (
    Arrival,
    Bucket,
    EngineInfo,
    LoadedParameter,
    LoadedWeights,
    SequenceScores,
    UpdateResult,
)
from ckptcheck.live.runtime.engines.digest import digest
from ckptcheck.live.runtime.engines.transports import Transport
from tests.doubles import fake_model as model
from tests.doubles.fake_fault import Fault
from tests.doubles.fake_memory import SCRATCH, FakeMemory

if TYPE_CHECKING:
    from numpy.typing import NDArray


class FakeEngine(FakeMemory):
    """An engine that holds float32 checkpoint tensors, on ranks that are replicas. draft: a draft model comes with it.

    empty: its parameters that it packs at every start. scratch: it has memory that every forward pass changes.
    calibrated: see `FakeMemory`.
    """

    transports: tuple[Transport, ...] = (
        Transport("reload", "reads the buckets from files", supports_inflight=True),
        Transport("gloo", "the same, and reports a weight version"),
        Transport("stream", "the same, as one stream", joins_buckets=True),
    )

    def __init__(
        self,
        tensors: Mapping[str, NDArray[Any]],
        faults: Sequence[Fault] = (),
        *,
        ranks: int = 1,
        draft: bool = False,
        device: str = "memory",
        empty: Collection[str] = (),
        scratch: bool = False,
        calibrated: bool = False,
    ) -> None:
        facts = {"block_size": "1", "device": device}
        self.info = EngineInfo("fake", "1", "float32", ranks, "FakeForCausalLM", facts)
        super().__init__(tensors, faults, ranks=ranks, draft=draft, empty=empty, scratch=scratch, calibrated=calibrated)

    def restart(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Load other tensors."""
        super().restart(tensors)
        self._cache: dict[tuple[int, ...], tuple[NDArray[Any], NDArray[Any]]] = {}
        self._sleeps = False
        self._delivered: dict[str, NDArray[Any]] = {}

    @property
    def ignored_switches(self) -> Mapping[str, str]:
        """It has no switches."""
        return {}

    def update_weights(
        self, parcels: Sequence[Bucket], transport: str, *, timeout: float | None = None
    ) -> UpdateResult:
        """Take the parcels from files, whatever the transport."""
        import numpy as np

        self._live("refit")
        self._updates += 1
        self._arrived: list[Arrival] = []
        self._loaded: dict[tuple[int, str], LoadedParameter] = {}
        version = str(self._updates - 2 * len(list(self._has("version")))) if transport == "gloo" else None
        if any(self._has("silent")):
            return UpdateResult(True, "", 0.0, None, version)
        returned = []
        for number, parcel in enumerate(parcels):
            for place, (name, values) in enumerate(_opened(parcel)):
                if name not in self._spans:
                    if any(self._has("ignores")):
                        continue
                    return UpdateResult(False, f"ValueError: there is no parameter named {name}", 0.0, None, version)
                if any(fault.name == name for fault in self._has("stops")):
                    return UpdateResult(True, "", 0.0, None, version)
                if number and not place and any(self._has("bucket")):
                    values = values.copy()
                    values.ravel()[-1] = 0
                values = self._deliver(name, values)
                if values is None:
                    continue
                self._write(name, np.asarray(values, np.float32), faulty=True)
                returned.append(self._spans[name][0])
        self._loaded = {
            (rank, name): LoadedParameter(digest(values), f"{id(values):x}+{self._moves.get(name, 0)}")
            for rank, held in enumerate(self._ranks)
            for name, values in held.items()
        }
        self._finish()
        if any(self._has("lying")):
            return UpdateResult(False, "TimeoutError: the update did not finish in time", 0.0, None, version)
        return UpdateResult(
            True, "", 0.0, tuple(dict.fromkeys(returned)) if transport == "load_weights" else None, version
        )

    def update_draft(self, parcels: Sequence[Bucket], transport: str) -> UpdateResult:
        """Take the draft model's weights from files. Its fault is that it does nothing; with a name, that is what it says."""
        for fault in self._has("draft"):
            return UpdateResult(not fault.name, fault.name, 0.0)
        self.write_draft({name: values for parcel in parcels for name, values in _opened(parcel)})
        return UpdateResult(True, "", 0.0)

    def _deliver(self, name: str, values: NDArray[Any]) -> NDArray[Any] | None:
        """Return what arrives in the place of a tensor, None if nothing does, and note it."""
        if any(fault.name == name for fault in self._has("lost")):
            return None
        if any(fault.name == name for fault in self._has("altered")):
            values = self._delivered.get(name, values) if self._updates > 1 else 2 * values
        self._delivered.setdefault(name, values)
        shown = digest(values.astype("float32"))
        self._arrived += [Arrival(name, rank, "F32", values.shape, shown) for rank in range(self.info.ranks)]
        return values

    def _state(self) -> tuple[NDArray[Any], NDArray[Any]]:
        if any(self._has("blind")):
            return model.state(self._true, model.derived(self._true)[model.PACKED])
        held = {name: self._ranks[0][name] for name in self._shapes}
        rows, head = model.state(held, self._derived[0][model.PACKED])
        for fault in self._has("path"):
            rows = rows * float(fault.other or 1.01)
        if any(self._has("noisy")):
            rows = rows * (1 + 1e-6 * (self._forwards % 2 + self._updates))
        return rows, head

    def score(self, sequences: Sequence[Sequence[int]], *, decode: int = 0) -> list[SequenceScores]:
        """Score by the fake model. The cache keeps the state that a sequence was first decoded with."""
        self._live("score")
        self._forwards += 1
        self._lazy_scales = self._lazy_scales or list(self._scales)
        for derived in self._derived if self._has_scratch else ():
            derived[SCRATCH] += 1
        found = []
        for tokens in sequences:
            table = model.logprobs(*self._state(), tokens)
            prompt = tuple(float(table[place, token]) for place, token in enumerate(tokens[1:]))
            decoded: list[int] = []
            values: list[float] = []
            cached = len(tokens) - 1 if decode and tuple(tokens) in self._cache else 0
            state = self._cache.setdefault(tuple(tokens), self._state()) if decode else self._state()
            for _ in range(decode):
                row = model.logprobs(*state, [(decoded or list(tokens))[-1]])[0]
                decoded.append(int(row.argmax()))
                values.append(float(row.max()))
            found.append(SequenceScores(prompt, tuple(decoded), tuple(values), cached))
        return found

    def capture_activations(self, tokens: Sequence[int], folder: Path) -> Mapping[str, NDArray[Any]]:
        """Return what the embedding puts out, and what the head gets."""
        return {
            "model.embed_tokens": self._ranks[0][model.EMBED][list(tokens)],
            "model.norm": self._state()[0][list(tokens)],
        }

    def score_by_decode(self, sequences: Sequence[Sequence[int]], prompt: int) -> list[tuple[float, ...]]:
        """Return logprobs of the tokens after the prompt."""
        off = 0.01 * any(self._has("decode"))
        return [tuple(value - off for value in each.prompt_logprobs[prompt - 1 :]) for each in self.score(sequences)]

    def reset_prefix_cache(self) -> None:
        """Forget the states."""
        self._live("reset_prefix_cache")
        if not any(self._has("cache")):
            self._cache.clear()

    def used_memory(self) -> int:
        """Return what is taken: less while it sleeps."""
        return self.memory_bytes() - (1024 if self._sleeps else 0)

    def sleep(self, level: int = 1) -> None:
        """Give memory away, and keep what was in it; 2: but for the weights."""
        self._live("sleep")
        self._sleeps = not any(fault.kind == "awake" for fault in self.faults)
        for held in self._ranks if level == 2 else ():
            for values in held.values():
                values[...] = 0
        if any(fault.kind == "unscaled" and fault.name == "sleep" for fault in self.faults):
            self._scales = [1.0 for _ in self._scales]
        lost = {fault.name for fault in self.faults if fault.kind == "sleep"}
        if "" in lost:
            self._rotary = self._rotary * 0
        for held in self._ranks:
            for name in lost & held.keys():
                held[name][...] = 0

    def wake(self, tags: Sequence[str] | None = None) -> None:
        """Take it again."""
        self._live("wake")
        self._sleeps = False

    def close(self) -> None:
        """Nothing was started."""


class ReceivingEngine(FakeEngine):
    """A fake engine that can say what reached its loader."""

    def record_arrivals(self, expected: Sequence[str], *, is_brief: bool = False) -> None:
        """Every update notes it anyway."""

    def read_arrivals(self) -> LoadedWeights:
        """Return what the last update got, and what it held when all of it was written."""
        return LoadedWeights(tuple(self._arrived), self._loaded)


def _opened(parcel: Bucket) -> Iterator[tuple[str, NDArray[Any]]]:
    from safetensors.numpy import load_file

    found = load_file(parcel.address["path"])
    yield from ((name, found[name]) for name in parcel.names)
