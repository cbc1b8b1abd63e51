"""What the fake engine holds: tensors on its ranks, written and looked at with every fault that a weight update can have there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.live.runtime.engines.base import (
    HostScalars,
    Kind,
    ScrambleResult,
    TensorDigest,
    TensorDigests,
    UnwrittenElements,
    WeightPart,
)
from ckptcheck.live.runtime.engines.digest import digest
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied, WorkerTimeout
from tests.doubles import fake_model as model
from tests.doubles.fake_fault import Fault, FaultKind

if TYPE_CHECKING:
    from numpy.typing import NDArray


SCRATCH = "attn.counters"
"""A derived tensor that every forward pass changes, where an engine has one."""


class FakeMemory:
    """float32 checkpoint tensors, fused as engines fuse them, on ranks that are replicas.

    draft: a draft model comes with it. empty: its parameters that it packs at every start. scratch: it has scratch memory.
    calibrated: a buffer of it holds a scale that comes with the weights.
    """

    def __init__(
        self,
        tensors: Mapping[str, NDArray[Any]],
        faults: Sequence[Fault],
        *,
        ranks: int,
        draft: bool,
        empty: Collection[str],
        scratch: bool = False,
        calibrated: bool = False,
    ) -> None:
        self._is_calibrated = calibrated
        self._has_scratch = scratch
        self.faults = tuple(faults)
        self.has_draft_session = False
        self._number, self._draft, self._packs = ranks, ("", "draft:") if draft else ("",), frozenset(empty)
        self.restart(tensors)

    def restart(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Load other tensors."""
        import numpy as np

        shapes = {name: values.shape for name, values in tensors.items()}
        self._shapes, self._spans = model.layout(shapes)
        self._ranks: list[model.Arrays] = []
        self._derived: list[model.Arrays] = []
        for _ in range(self._number):
            held: model.Arrays = {}
            for prefix in self._draft:
                held |= {prefix + name: np.zeros(shape, np.float32) for name, shape in self._shapes.items()}
            self._ranks.append(held)
            self._derived.append({})
        self._rotary = np.linspace(0, 1, 64, dtype=np.float32)
        self._updates, self._marks = 0, False
        self._moves: dict[str, int] = {}
        self._empty: set[str] = set(self._packs)
        self._names: dict[str, str] = {}
        self._first: dict[str, NDArray[Any]] = {}
        self._leaked = 0
        self._true: model.Arrays = {}
        for name, values in tensors.items():
            self._write(name, np.asarray(values, np.float32), faulty=False)
        self._derived = [model.derived(held) for held in self._ranks]
        for derived in self._derived if self._has_scratch else ():
            derived[SCRATCH] = np.zeros(4, np.float32)
        self._scales = [model.scale(held) for held in self._ranks]
        self._scale_buffer = np.full(1, self._scales[0], np.float32)
        self._lazy_scales: list[float] = []
        self._forwards = 0
        self._start = [{name: values.copy() for name, values in held.items()} for held in self._ranks]

    def _has(self, kind: FaultKind) -> Iterator[Fault]:
        return (fault for fault in self.faults if fault.kind == kind and self._updates >= fault.since)

    def _live(self, method: str) -> None:
        for fault in self.faults:
            if fault.name == method and self._updates + 1 >= fault.since:
                if fault.kind == "died":
                    raise WorkerDied(f"fake died (SIGKILL) when asked to {method}", ("MemoryError: no more",))
                if fault.kind == "hung":
                    raise WorkerTimeout(f"fake did not answer in time when asked to {method}, and was ended")

    def _all(self) -> Iterator[tuple[int, str, Kind, NDArray[Any]]]:
        for rank, held in enumerate(self._ranks):
            yield from ((rank, name, "parameter", values) for name, values in held.items())
            yield rank, model.ROTARY, "buffer", self._rotary
            if self._is_calibrated:
                yield rank, model.SCALE_BUFFER, "buffer", self._scale_buffer
            yield from ((rank, name, "derived", values) for name, values in self._derived[rank].items())

    def digest_tensors(self) -> TensorDigests:
        """Digest everything."""
        self._live("manifest")
        found = {}
        for rank, own, kind, values in self._all():
            name, empty = self._names.get(own, own), own in self._empty
            if not name:
                continue
            where = f"{id(values):x}+{self._moves.get(own, 0)}"
            shape = (0,) if empty else values.shape
            why = "it is empty: the engine computes with a packed copy" if empty else ""
            nbytes = 0 if empty else values.nbytes
            found[rank, name] = TensorDigest(
                name, rank, kind, "F32", shape, nbytes, "" if empty else digest(values), where, why
            )
        return found

    def sum_parts(self, parts: Sequence[WeightPart]) -> list[tuple[int, int]]:
        """Sum parts of weights."""
        from ckptcheck.values.shard_digest import sum_shard

        held = {
            (rank, self._names.get(own, own)): values for rank, own, _, values in self._all() if own not in self._empty
        }
        if gone := [part for part in parts if (part.rank, part.name) not in held]:
            raise RemoteError("fake", "sum_parts", "KeyError", gone[0].name, "")
        sums = []
        for part in parts:
            flat = held[part.rank, part.name].reshape(-1)
            values = flat[part.begin : part.begin + prod(part.shape)].reshape(part.shape)
            sums.append(sum_shard(values, part.origin, part.whole))
        return sums

    def read_scalars(self) -> HostScalars:
        """Return numbers on the host: a scale, one that the first forward pass makes of it, a count, one that each pass changes."""
        found: dict[tuple[int, str], float] = {}
        for rank, scale in enumerate(self._scales):
            if not any(not fault.name for fault in self._has("unscaled")):
                found[rank, model.SCALE] = scale
            found[rank, "attn.num_heads"] = 4 + sum(1 for _ in self._has("heads"))
            if self._lazy_scales:
                found |= {(rank, "attn.bmm1_scale"): self._lazy_scales[rank], (rank, "attn.length"): self._forwards}
        return found

    def scramble_weights(self, *, keep_draft: bool | None = None) -> ScrambleResult:
        """Mark parameters and the packed head."""
        self._live("scramble")
        names = set()
        left = {(rank, name): "it is empty" for rank in range(self._number) for name in self._empty}
        kept = {fault.name for fault in self.faults if fault.kind == "unmarked"}
        for rank, name, kind, values in self._all():
            if kind == "buffer" or name in self._empty or name == SCRATCH or (keep_draft and name.startswith("draft:")):
                continue
            if "" in kept:
                left[rank, name] = "nothing unusual can be written there"
                continue
            names.add((rank, name))
            if name not in kept:
                values[...] = model.marked(name, rank, values.shape)
        if any(fault.kind == "spilled" for fault in self.faults):
            self._rotary = self._rotary + 1
        self._marks = True
        return ScrambleResult(frozenset(names), left)

    def find_unwritten(self) -> Mapping[tuple[int, str], UnwrittenElements]:
        """Return what still holds marks, or memory that was never written."""
        import numpy as np

        found = {}
        for rank, name, kind, values in self._all():
            if kind == "buffer" or not self._marks or name in self._empty or name == SCRATCH:
                continue
            same = (values == model.marked(name, rank, values.shape)).ravel()
            blank = np.isnan(values).ravel()
            if same.any() or blank.any():
                count, unset = int(same.sum()), int(blank.sum())
                found[rank, name] = UnwrittenElements(count, values.size, _runs(same), unset, _runs(blank))
        return found

    def write_draft(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Write these tensors of the draft model, which an update of the others leaves alone from now on."""
        self.has_draft_session = True
        for held in self._ranks:
            for name, values in tensors.items():
                engine, span = self._spans[name]
                held[f"draft:{engine}"].ravel()[span] = values.ravel()

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
            values = self._change(name, values, None)
            for fault in self._has("swapped"):
                if name in (fault.name, fault.other):
                    engine, span = self._spans[fault.other if name == fault.name else fault.name]
        for rank, held in enumerate(self._ranks):
            late = faulty and rank == self._number - 1
            if late and any(fault.name in (engine, name) for fault in self._has("rank")):
                continue
            own = self._change(name, values, rank) if faulty else values
            for prefix in self._draft:
                if not (prefix and faulty and (self.has_draft_session or any(self._has("draft")))):
                    held[prefix + engine].ravel()[span] = own.ravel()

    def _change(self, name: str, values: NDArray[Any], rank: int | None) -> NDArray[Any]:
        """Return the values as the faults of a rank change them; None: those of all ranks."""
        import numpy as np

        if self._updates > 1 and any(fault.name == name and fault.rank == rank for fault in self._has("scaled")):
            values = values * 2
        if any(fault.name == name and fault.rank == rank for fault in self._has("cast")):
            bits = values.view(np.uint32) if values.flags.c_contiguous else values.copy().view(np.uint32)
            values = (((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) << 16).view(np.float32)
        return values

    def _finish(self) -> None:
        if not any(self._has("derived")):
            for held, own in zip(self._ranks, self._derived, strict=True):
                for name, values in model.derived(held).items():
                    own[name][...] = values
        if not any(self._has("scalar")):
            self._scales = [model.scale(held) for held in self._ranks]
        if not any(self._has("unscaled buffer")):
            self._scale_buffer[...] = model.scale(self._ranks[0])
        elif any(fault.name == "one" for fault in self._has("unscaled buffer")):
            self._scale_buffer[...] = 1
        if not any(self._has("lazy")):
            self._lazy_scales = []
        for held, start in zip(self._ranks, self._start, strict=True):
            for fault in self._has("restored"):
                held[fault.name][...] = start[fault.name]
            for fault in self._has("unsent"):
                held[fault.name] += 1
        for _ in self._has("rotary"):
            self._rotary = self._rotary + 1
        self._empty |= {fault.name for fault in self._has("emptied")}
        self._names |= {fault.name: fault.other for fault in self._has("renamed")}
        self._moves |= {fault.name: self._updates for fault in self._has("moved")}
        self._leaked += (1 << 24) * len(list(self._has("leak")))

    def fetch_tensors(self, names: Sequence[tuple[int, str]], folder: Path) -> Path:
        """Write tensors to a file."""
        from safetensors.numpy import save_file

        wanted = set(names)
        found = {f"{rank}/{name}": values.copy() for rank, name, _, values in self._all() if (rank, name) in wanted}
        save_file(found, folder / "fetched.safetensors")
        return folder / "fetched.safetensors"

    def memory_bytes(self) -> int:
        """Return what all tensors take."""
        return sum(values.nbytes for _, _, _, values in self._all()) + self._leaked


def _runs(flags: NDArray[Any]) -> tuple[tuple[int, int], ...]:
    import numpy as np

    steps = np.diff(np.concatenate([[0], flags.astype(np.int8), [0]]))
    pairs = zip(np.flatnonzero(steps == 1), np.flatnonzero(steps == -1), strict=True)
    return tuple((int(begin), int(end)) for begin, end in pairs)[:8]
