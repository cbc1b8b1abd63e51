"""The engine's side of a watch: reads the weights that the engine holds, and its weight version."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from ckptcheck.errors import CkptcheckError
from ckptcheck.runs.history.record import NO_BYTES
from ckptcheck.watch.engine_layout import EngineLayout, EnginePart
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


def read_engine(
    engine: WatchedEngine,
    sent: Collection[str],
    digests: SyncDigests,
    includes: Callable[[str], bool],
    stops: Callable[[], bool],
) -> Mapping[str, str]:
    """Read the engine's weights, and return ``rank/name`` of each that could not be read → why.

    Args:
        engine: the engine.
        sent: the names that the trainer sent, by which fused tensors of a module are split.
        digests: receives ``rank/name`` of each weight. A part of a fused tensor has the name under which the trainer sends it.
        includes: whether to digest what the trainer sends by this name. Tensors that are built from none of the sent ones are
            always digested.
        stops: whether the time for this sync is over; the caller then drops the digests.

    A digest of no bytes means an unreadable weight: an engine that packs its weights leaves empty tensors behind.
    """
    if isinstance(engine, _ModuleSide):
        return engine.read(sent, digests, includes, stops)
    held = engine.held()
    empty = {place: EMPTY for place, value in held.items() if value in NO_BYTES}
    digests.add_digests({place: value for place, value in held.items() if place not in empty})
    return empty


def find_dtype(engine: WatchedEngine | None, name: str) -> Any:
    """Return the dtype in which a module of this process held what the trainer sends by this name; None if that is not known."""
    if not isinstance(engine, _ModuleSide):
        return None
    return engine.dtypes.get(name) if engine.dtypes else engine.only_dtype


def is_on_cpu(engine: WatchedEngine) -> bool:
    """Whether it is a module of this process in the host's memory, which no engine gives back while it sleeps."""
    return isinstance(engine, _ModuleSide) and next((each.device.type for _, each in engine.tensors()), "") == "cpu"


def read_parts(engine: WatchedEngine, sent: Collection[str]) -> Iterator[tuple[EnginePart, Any]]:
    """Yield each part of what a torch module in this process holds, with its tensor; nothing of any other engine.

    sent: see `read_engine`. The tensors are the engine's own memory. Raises CkptcheckError where the parameters change meanwhile.
    """
    if isinstance(engine, _ModuleSide):
        for part in engine.find_layout(sent).parts:
            tensor = part.find_tensor()
            if tensor is None:
                raise CkptcheckError("its parameters change while they are read")
            yield part, tensor


class _ModuleSide:
    """A torch module in this process."""

    alike = True

    def __init__(self, model: Any, name: str) -> None:
        self._model, self.name = model, name
        self._layout: EngineLayout | None = None

    @property
    def dtypes(self) -> Mapping[str, Any]:
        """Name of each part of the last reading → its dtype."""
        return self._layout.dtypes if self._layout is not None else {}

    @cached_property
    def only_dtype(self) -> Any:
        """The one dtype of all parameters, None if there are several."""
        found = {tensor.dtype for _, tensor in self.tensors()}
        return found.pop() if len(found) == 1 else None

    def held(self) -> Mapping[str, str]:
        """Digest the parameters on their own devices."""
        digests = SyncDigests()
        self.read((), digests, lambda name: True, lambda: False)
        return digests.fetch()

    def read(
        self, sent: Collection[str], digests: SyncDigests, includes: Callable[[str], bool], stops: Callable[[], bool]
    ) -> Mapping[str, str]:
        """Digest the parameters on their own devices, the fused ones in parts. The arguments are those of `read_engine`."""
        layout = self.find_layout(sent)
        if not self._read_parts(layout, digests, includes, stops):
            # a parameter has another form than at the last sync
            self._layout = None
            layout = self.find_layout(sent)
            if not self._read_parts(layout, digests, includes, stops):
                raise CkptcheckError("its parameters change while they are read")
        return {f"0/{name}": EMPTY for name in layout.empty}

    def find_layout(self, sent: Collection[str]) -> EngineLayout:
        """Return where the parts lie: as at the last reading, if the module and the names are the same."""
        names, layout = frozenset(sent), self._layout
        if layout is None or layout.names != names or not layout.fits():
            layout = self._layout = EngineLayout(self._model, names)
        return layout

    def _read_parts(
        self, layout: EngineLayout, digests: SyncDigests, includes: Callable[[str], bool], stops: Callable[[], bool]
    ) -> bool:
        """Digest the included parts of a layout, and return whether all are still in their places."""
        for part in layout.parts:
            if part.sources and not any(map(includes, part.sources)):
                continue
            if stops():
                break
            tensor = part.find_tensor()
            if tensor is None:
                return False
            digests.add(f"0/{part.name}", tensor)
        return True

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
