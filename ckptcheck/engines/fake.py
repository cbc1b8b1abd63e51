"""An engine in memory that can have every fault of a weight update. For tests of what finds them; it checks nothing real."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.engines import fake_model as model
from ckptcheck.engines.base import Answer, EngineInfo, Entry, Kind, Leftover, Manifest, Parcel, Scores, Scrambled
from ckptcheck.engines.digest import digest
from ckptcheck.engines.fake_fault import Fault, FaultKind
from ckptcheck.engines.sampling import Inflight, Sampling
from ckptcheck.host.trouble import HostDied, HostHung

if TYPE_CHECKING:
    from numpy.typing import NDArray


class FakeEngine:
    """An engine that holds float32 checkpoint tensors, on ranks that are replicas. draft: a draft model comes with it."""

    transports: tuple[str, ...] = ("reload", "gloo")
    streams: tuple[str, ...] = ("stream",)
    pauses: tuple[str, ...] = ("in_place",)

    def __init__(
        self,
        tensors: Mapping[str, NDArray[Any]],
        faults: Sequence[Fault] = (),
        *,
        ranks: int = 1,
        draft: bool = False,
        device: str = "memory",
    ) -> None:
        facts = {"block_size": "1", "device": device}
        self.info = EngineInfo("fake", "1", "float32", ranks, "FakeForCausalLM", facts)
        self.faults = tuple(faults)
        self._draft = ("", "draft:") if draft else ("",)
        self.restart(tensors)

    @property
    def ignored(self) -> Mapping[str, str]:
        """It has no switches."""
        return {}

    def restart(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Load other tensors."""
        import numpy as np

        shapes = {name: values.shape for name, values in tensors.items()}
        self._shapes, self._spans = model.layout(shapes)
        self._ranks: list[model.Arrays] = []
        self._derived: list[model.Arrays] = []
        for _ in range(self.info.ranks):
            held: model.Arrays = {}
            for prefix in self._draft:
                held |= {prefix + name: np.zeros(shape, np.float32) for name, shape in self._shapes.items()}
            self._ranks.append(held)
            self._derived.append({})
        self._rotary = np.linspace(0, 1, 64, dtype=np.float32)
        self._updates, self._marks = 0, False
        self._moves: dict[str, int] = {}
        self._empty: set[str] = set()
        self._first: dict[str, NDArray[Any]] = {}
        self._cache: dict[tuple[int, ...], tuple[NDArray[Any], NDArray[Any]]] = {}
        self._leaked = 0
        self._true: model.Arrays = {}
        for name, values in tensors.items():
            self._write(name, np.asarray(values, np.float32), faulty=False)
        self._derived = [model.derived(held) for held in self._ranks]
        self._start = [{name: values.copy() for name, values in held.items()} for held in self._ranks]

    def _has(self, kind: FaultKind) -> Iterator[Fault]:
        return (fault for fault in self.faults if fault.kind == kind and self._updates >= fault.since)

    def _live(self, method: str) -> None:
        for fault in self.faults:
            if fault.name == method and self._updates + 1 >= fault.since:
                if fault.kind == "died":
                    raise HostDied(f"fake died (SIGKILL) when asked to {method}", ("MemoryError: no more",))
                if fault.kind == "hung":
                    raise HostHung(f"fake did not answer in time when asked to {method}, and was ended")

    def _all(self) -> Iterator[tuple[int, str, Kind, NDArray[Any]]]:
        for rank, held in enumerate(self._ranks):
            yield from ((rank, name, "parameter", values) for name, values in held.items())
            yield rank, model.ROTARY, "buffer", self._rotary
            yield from ((rank, name, "derived", values) for name, values in self._derived[rank].items())

    def manifest(self) -> Manifest:
        """Digest everything."""
        self._live("manifest")
        found = {}
        for rank, name, kind, values in self._all():
            empty = name in self._empty
            where = f"{id(values):x}+{self._moves.get(name, 0)}"
            shape = (0,) if empty else values.shape
            why = "it is empty: the engine computes with a packed copy" if empty else ""
            nbytes = 0 if empty else values.nbytes
            found[rank, name] = Entry(
                name, rank, kind, "F32", shape, nbytes, "" if empty else digest(values), where, why
            )
        return found

    def scramble(self) -> Scrambled:
        """Mark parameters and the packed head."""
        self._live("scramble")
        names = set()
        for rank, name, kind, values in self._all():
            if kind != "buffer" and name not in self._empty:
                values[...] = model.marked(name, rank, values.shape)
                names.add((rank, name))
        self._marks = True
        left = {(rank, name): "it is empty" for rank in range(self.info.ranks) for name in self._empty}
        return Scrambled(frozenset(names), left)

    def leftovers(self) -> Mapping[tuple[int, str], Leftover]:
        """Return what still holds marks, or memory that was never written."""
        import numpy as np

        found = {}
        for rank, name, kind, values in self._all():
            if kind == "buffer" or not self._marks or name in self._empty:
                continue
            same = (values == model.marked(name, rank, values.shape)).ravel()
            blank = np.isnan(values).ravel()
            if same.any() or blank.any():
                count, unset = int(same.sum()), int(blank.sum())
                found[rank, name] = Leftover(count, values.size, _runs(same), unset, _runs(blank))
        return found

    def refit(self, parcels: Sequence[Parcel], transport: str, *, timeout: float | None = None) -> Answer:
        """Take the parcels from files, whatever the transport."""
        import numpy as np

        self._live("refit")
        self._updates += 1
        version = str(self._updates - 2 * len(list(self._has("version")))) if transport == "gloo" else None
        if any(self._has("silent")):
            return Answer(True, "", 0.0, None, version)
        returned = []
        for number, parcel in enumerate(parcels):
            for place, (name, values) in enumerate(_opened(parcel)):
                if name not in self._spans:
                    if any(self._has("ignores")):
                        continue
                    return Answer(False, f"ValueError: there is no parameter named {name}", 0.0, None, version)
                if number and not place and any(self._has("bucket")):
                    values = values.copy()
                    values.ravel()[-1] = 0
                self._write(name, np.asarray(values, np.float32), faulty=True)
                returned.append(self._spans[name][0])
        self._finish()
        if any(self._has("lying")):
            return Answer(False, "TimeoutError: the update did not finish in time", 0.0, None, version)
        return Answer(True, "", 0.0, tuple(dict.fromkeys(returned)) if transport == "load_weights" else None, version)

    def inflight(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling | Sequence[Sampling],
        parcels: Sequence[Parcel],
        *,
        pause: str,
        clear_cache: bool,
        after: int,
        version: str,
    ) -> Inflight:
        """Take the parcels; nobody waits for the requests."""
        answer = self.refit(parcels, self.transports[0])
        if any(self._has("busy")):
            answer = replace(answer, ok=False, message="weights were updated, but the cache was not flushed")
        return Inflight(answer, ())

    def _write(self, name: str, values: NDArray[Any], *, faulty: bool) -> None:
        import numpy as np

        engine, span = self._spans[name]
        self._true.setdefault(engine, np.zeros(self._shapes[engine], np.float32)).ravel()[span] = values.ravel()
        if faulty:
            first = self._first.setdefault(name, values)
            if any(fault.name == name for fault in self._has("dropped")):
                return
            if any(fault.name == name for fault in self._has("partial")):
                values = np.full_like(values, np.nan)
            if self._updates > 1 and any(fault.name == name for fault in self._has("stale")):
                values = first
            if self._updates > 1 and any(fault.name == name for fault in self._has("scaled")):
                values = values * 2
            if any(fault.name == name for fault in self._has("cast")):
                bits = values.view(np.uint32) if values.flags.c_contiguous else values.copy().view(np.uint32)
                values = (((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) << 16).view(np.float32)
            for fault in self._has("swapped"):
                if name in (fault.name, fault.other):
                    engine, span = self._spans[fault.other if name == fault.name else fault.name]
        for rank, held in enumerate(self._ranks):
            late = faulty and rank == self.info.ranks - 1
            if late and any(fault.name == engine for fault in self._has("rank")):
                continue
            for prefix in self._draft:
                if not (prefix and faulty and any(self._has("draft"))):
                    held[prefix + engine].ravel()[span] = values.ravel()

    def _finish(self) -> None:
        if not any(self._has("derived")):
            for held, own in zip(self._ranks, self._derived, strict=True):
                for name, values in model.derived(held).items():
                    own[name][...] = values
        for held, start in zip(self._ranks, self._start, strict=True):
            for fault in self._has("restored"):
                held[fault.name][...] = start[fault.name]
            for fault in self._has("unsent"):
                held[fault.name] += 1
        for _ in self._has("rotary"):
            self._rotary = self._rotary + 1
        self._empty |= {fault.name for fault in self._has("emptied")}
        self._moves |= {fault.name: self._updates for fault in self._has("moved")}
        self._leaked += (1 << 24) * len(list(self._has("leak")))

    def _state(self) -> tuple[NDArray[Any], NDArray[Any]]:
        if any(self._has("blind")):
            return model.state(self._true, model.derived(self._true)[model.PACKED])
        held = {name: self._ranks[0][name] for name in self._shapes}
        rows, head = model.state(held, self._derived[0][model.PACKED])
        return (rows * 1.01 if any(self._has("path")) else rows), head

    def score(self, sequences: Sequence[Sequence[int]], *, decode: int = 0) -> list[Scores]:
        """Score by the fake model. The cache keeps the state that a sequence was first decoded with."""
        self._live("score")
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
            found.append(Scores(prompt, tuple(decoded), tuple(values), cached))
        return found

    def follow(self, sequences: Sequence[Sequence[int]], prompt: int) -> list[tuple[float, ...]]:
        """Return logprobs of the tokens after the prompt."""
        off = 0.01 * any(self._has("decode"))
        return [tuple(value - off for value in each.prompt[prompt - 1 :]) for each in self.score(sequences)]

    def reset_prefix_cache(self) -> None:
        """Forget the states."""
        self._live("reset_prefix_cache")
        if not any(self._has("cache")):
            self._cache.clear()

    def sleep(self, level: int = 1) -> None:
        """Give memory away, and keep what was in it."""
        self._live("sleep")
        if any(fault.kind == "sleep" for fault in self.faults):
            self._rotary = self._rotary * 0

    def wake(self) -> None:
        """Take it again."""
        self._live("wake")

    def fetch(self, names: Sequence[tuple[int, str]], folder: Path) -> Path:
        """Write tensors to a file."""
        from safetensors.numpy import save_file

        wanted = set(names)
        found = {f"{rank}/{name}": values.copy() for rank, name, _, values in self._all() if (rank, name) in wanted}
        save_file(found, folder / "fetched.safetensors")
        return folder / "fetched.safetensors"

    def memory(self) -> int:
        """Return what all tensors take."""
        return sum(values.nbytes for _, _, _, values in self._all()) + self._leaked

    def close(self) -> None:
        """Nothing was started."""


def _opened(parcel: Parcel) -> Iterator[tuple[str, NDArray[Any]]]:
    from safetensors.numpy import load_file

    found = load_file(parcel.address["path"])
    yield from ((name, found[name]) for name in parcel.names)


def _runs(flags: NDArray[Any]) -> tuple[tuple[int, int], ...]:
    import numpy as np

    steps = np.diff(np.concatenate([[0], flags.astype(np.int8), [0]]))
    pairs = zip(np.flatnonzero(steps == 1), np.flatnonzero(steps == -1), strict=True)
    return tuple((int(begin), int(end)) for begin, end in pairs)[:8]
