"""The engine's side of a watch: reads the weights that the engine holds, and its weight version."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.worker.ckptcheck_worker.tensor_copies import without_functions_of_classes
from ckptcheck.runs.history.record import NO_BYTES
from ckptcheck.watch.engine_layout import EngineLayout
from ckptcheck.watch.engine_parts import split_fused
from ckptcheck.watch.tensor_digests import SyncDigests

if TYPE_CHECKING:
    from ckptcheck.live.runtime.servers.base import Server

SOON = 5.0
"""Seconds for a server to report its version, which needs no scheduler."""
EMPTY = "it is empty: the engine computes with a packed copy"


class WatchedEngine(Protocol):
    """The engine, as a watch sees it. An exception becomes a warning, and the record of the sync lacks the engine's weights.

    If the engine does not report its version after a sync, the watch does not ask for its weights: that would delay the
    training a second time.
    """

    name: str
    """The name of the engine, for the record."""
    alike: bool
    """Whether its digests come from ckptcheck's own function, so that they compare with the trainer's."""

    def held(self) -> Mapping[str, str]:
        """Return the ``rank/name`` of every weight → its digest."""
        ...

    def version(self) -> str | None:
        """Return the weight version that it reports, None if it reports none."""
        ...


@dataclass(frozen=True)
class EngineSelection:
    """Which of an engine's tensors, and which of their rows, a sync digests."""

    group: tuple[int, int] = (0, 1)
    """The group of tensors and the number of groups: a key for caching the answers of `includes`."""
    includes: Callable[[str], bool] = lambda name: True
    """Whether the sync digests the tensor that the trainer sends by this name."""
    choose_rows: Callable[[str, Any, Any], slice | None] = lambda name, shape, tensor: None
    """Name, shape and parameter of a tensor, or of a part of a parameter → the rows to digest, None for all."""
    stops: Callable[[], bool] = lambda: False
    """Whether the time for this sync is over; the sync then drops its digests."""
    defers: bool = False
    """Whether the caller checks `is_layout_kept` later, in the background, before it believes the digests."""


EVERYTHING = EngineSelection()


def read_engine(
    engine: WatchedEngine, sent: Collection[str], digests: SyncDigests, selection: EngineSelection = EVERYTHING
) -> Mapping[str, str]:
    """Read the engine's weights, and return ``rank/name`` of each that could not be read → why.

    Args:
        engine: the engine.
        sent: the names that the trainer sent, by which fused tensors of a module are split.
        digests: receives ``rank/name`` of each weight. A part of a fused tensor has the name under which the trainer sends it.
        selection: which of these to digest now. Tensors that are built from none of the sent ones are always digested.

    A digest of no bytes means an unreadable weight: an engine that packs its weights leaves empty tensors behind.
    """
    if isinstance(engine, _ModuleSide):
        return engine.read(sent, digests, selection)
    held = engine.held()
    empty = {place: EMPTY for place, value in held.items() if value in NO_BYTES}
    digests.add_digests({place: value for place, value in held.items() if place not in empty})
    return empty


def digests_whole_tensors(engine: WatchedEngine | None) -> bool:
    """Return whether an engine digests whole tensors only, so that the trainer's must be whole too for a comparison."""
    return engine is not None and engine.alike and not isinstance(engine, _ModuleSide)


def is_layout_kept(engine: WatchedEngine | None) -> bool:
    """Return whether an engine still has the modules that `read_engine` read, so that it computes with what was read.

    If not, the next sync searches the engine's modules again. The check uses no device and takes a millisecond for a large model.
    """
    return not isinstance(engine, _ModuleSide) or engine.is_layout_kept()


def read_parts(engine: WatchedEngine, sent: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield name and tensor of what a torch module in this process holds, fused tensors in parts; nothing of any other engine.

    sent: see `read_engine`. The tensors are the engine's own memory.
    """
    if isinstance(engine, _ModuleSide):
        yield from engine.tensors_by_part(sent)


class _ModuleSide:
    """A torch module in this process."""

    alike = True

    def __init__(self, model: Any, name: str) -> None:
        self._model, self.name = model, name
        self._layout: EngineLayout | None = None

    def held(self) -> Mapping[str, str]:
        """Digest the parameters on their own devices."""
        digests = SyncDigests(defers=False)
        self.read((), digests)
        return digests.compute()

    def read(
        self, sent: Collection[str], digests: SyncDigests, selection: EngineSelection = EVERYTHING
    ) -> Mapping[str, str]:
        """Digest the parameters on their own devices, the fused ones in parts. The arguments are those of `read_engine`.

        If the engine has emptied a parameter, the digest is of its layer's output, and never equals the trainer's.
        """
        layout = self._layout
        names = sent.keys() if isinstance(sent, dict) else frozenset(sent)
        if (
            layout is None
            or layout.names != names
            or not (selection.defers or layout.fits())
            or not self._read_parts(layout, digests, selection)
        ):
            layout = self._layout = EngineLayout(self._model, frozenset(names))
            if not self._read_parts(layout, digests, selection):
                raise CkptcheckError("its parameters change while they are read")
        return self._read_empty(layout, digests, selection)

    def is_layout_kept(self) -> bool:
        """Return whether the module still has the parameters of the last reading."""
        layout = self._layout
        is_kept = layout is None or layout.fits()
        if not is_kept and self._layout is layout:
            self._layout = None
        return is_kept

    def _read_parts(self, layout: EngineLayout, digests: SyncDigests, selection: EngineSelection) -> bool:
        """Digest the selected parts of a layout, and return whether all are still in their places."""
        others = []
        # vLLM's parameters are of a subclass of Tensor, whose __torch_function__ would run at every access to an attribute
        with without_functions_of_classes():
            for part in layout.list_parts(selection.group, selection.includes):
                if selection.stops():
                    return True
                parameter = part.find_parameter()
                if parameter is None:
                    return False
                shape, _, offset = part.view
                rows = selection.choose_rows(part.name, shape, parameter) if part.name in layout.names else None
                if not (part.is_contiguous and digests.copy_rows(f"0/{part.name}", parameter, rows, (shape, offset))):
                    others.append((part, rows))
        for part, rows in others:
            if selection.stops():
                return True
            tensor = part.find_tensor()
            if tensor is None:
                return False
            digests.add(f"0/{part.name}", tensor, rows)
        return True

    def _read_empty(self, layout: EngineLayout, digests: SyncDigests, selection: EngineSelection) -> Mapping[str, str]:
        """Digest what the layers of emptied weights compute, and return those that cannot be read → why."""
        from ckptcheck.live.runtime.worker.ckptcheck_worker.packed_weights import read_packed_weight

        unseen = {}
        for name, owner in layout.empty:
            weight = read_packed_weight(owner) if name.rpartition(".")[2] == "weight" else None
            if weight is None:
                unseen[f"0/{name}"] = EMPTY
                continue
            for part, view in split_fused(name, weight, owner, layout.names):
                if part not in layout.names or (selection.includes(part) and not selection.stops()):
                    digests.add(f"0/{part}", view, prefix="computed:")
        return unseen

    def tensors_by_part(self, sent: Collection[str]) -> Iterator[tuple[str, Any]]:
        """Yield name and tensor of every part. Raises CkptcheckError where the parameters change meanwhile."""
        for part in EngineLayout(self._model, frozenset(sent)).parts:
            tensor = part.find_tensor()
            if tensor is None:
                raise CkptcheckError("its parameters change while they are read")
            yield part.name, tensor

    def tensors(self) -> Iterable[tuple[str, Any]]:
        """Yield the name and the tensor of every parameter."""
        pairs: Iterable[tuple[str, Any]] = self._model.named_parameters()
        return pairs

    def version(self) -> str | None:
        """Return None: a module has no version."""
        return None


class _ServersSide:
    """Running servers, asked over HTTP."""

    alike = False

    def __init__(self, urls: Sequence[str], remote: bool, seconds: float) -> None:
        self._urls, self._remote, self._seconds = urls, remote, seconds
        self._servers: list[Server] = []
        self.name = " ".join(urls)

    def held(self) -> Mapping[str, str]:
        """Ask every server for its own checksums."""
        return {
            f"{number}.{key}" if number else key: value
            for number, server in enumerate(self._found())
            for key, value in server.checksums(seconds=self._seconds).items()
        }

    def version(self) -> str | None:
        """Return the version that all servers report, or all versions if they differ. Servers that report none are left out."""
        versions = {server.weight_version(seconds=min(self._seconds, SOON)) for server in self._found()}
        return " and ".join(sorted(versions - {""})) or None

    def _found(self) -> list[Server]:
        """Return the servers. The first call connects to them, because they may start after the trainer."""
        from ckptcheck.live.runtime.servers.client import ServerClient
        from ckptcheck.live.runtime.servers.detect_engine import detect_engine

        if not self._servers:
            key = os.environ.get("CKPTCHECK_API_KEY")
            clients = [ServerClient(url, remote=self._remote, key=key) for url in self._urls]
            self._servers = [detect_engine(client, seconds=min(self._seconds, SOON)) for client in clients]
        return self._servers


def module(model: Any, name: str = "engine") -> WatchedEngine:
    """Watch a torch module in this process, for an engine that runs in the trainer's process. name: for the record.

    Raises CkptcheckError for what is no module.
    """
    if not hasattr(model, "named_parameters"):
        raise CkptcheckError(f"module(…) takes the engine's torch module, and {type(model).__name__} is none")
    return _ModuleSide(model, name)


def servers(*urls: str, allow_remote: bool = False, seconds: float = 30.0) -> WatchedEngine:
    """Watch running SGLang or vLLM servers by their own checksums and weight versions.

    allow_remote: whether they may be on other machines. seconds: time limit for the checksums of one server, which hashes
    every weight; a large model needs more. The API key comes from the environment variable CKPTCHECK_API_KEY. vLLM has
    checksums from 0.32 on, in dev mode. The hash is the engine's own, so it shows that a weight changed, and not whether it
    equals the trainer's. Raises CkptcheckError where no address is given.
    """
    if not urls:
        raise CkptcheckError("servers(…) takes the address of one server at least", "servers('http://127.0.0.1:30000')")
    return _ServersSide(urls, allow_remote, seconds)
