"""The engine's side of a watch: reads the weights that the engine holds, and its weight version."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ckptcheck.refit.history.record import NO_BYTES
from ckptcheck.watch.engine_parts import split_fused
from ckptcheck.watch.tensor_digests import digest_rows

if TYPE_CHECKING:
    from ckptcheck.runtime.servers.base import Server

ChooseRows = Callable[[str, Sequence[int]], slice | None]
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
class EngineWeights:
    """What was read of an engine's weights."""

    digests: Mapping[str, str]
    """``rank/name`` → digest. A part of a fused tensor has the name under which the trainer sends it."""
    unseen: Mapping[str, str] = field(default_factory=dict)
    """``rank/name`` of each weight that could not be read → why."""


def read_engine(
    engine: WatchedEngine,
    sent: Collection[str],
    includes: Callable[[str], bool] = lambda name: True,
    choose_rows: ChooseRows = lambda name, shape: None,
) -> EngineWeights:
    """Read the engine's weights.

    sent: the names that the trainer sent, by which a module's fused tensors are told apart. includes: which of these to look at
    now; what has another name is looked at always. choose_rows: by name and shape, the rows of a tensor to look at, None for all.

    A digest of no bytes means a weight that is not there to be read: an engine that packs its weights leaves empty ones behind.
    """
    if isinstance(engine, _ModuleSide):
        return engine.read(sent, includes, choose_rows)
    digests = engine.held()
    empty = {place: EMPTY for place, value in digests.items() if value in NO_BYTES}
    return EngineWeights({place: value for place, value in digests.items() if place not in empty}, empty)


class _ModuleSide:
    """A torch module in this process."""

    alike = True

    def __init__(self, model: Any, name: str) -> None:
        self._model, self.name = model, name

    def held(self) -> Mapping[str, str]:
        """Digest the parameters on their own devices."""
        return self.read(()).digests

    def read(
        self,
        sent: Collection[str],
        includes: Callable[[str], bool] = lambda name: True,
        choose_rows: ChooseRows = lambda name, shape: None,
    ) -> EngineWeights:
        """Digest the parameters on their own devices, the fused ones in parts. The arguments are those of `read_engine`.

        A parameter that the engine emptied is read by what its layer computes; its digest then never equals what was sent.
        """
        from ckptcheck.runtime.worker.ckptcheck_worker.digest import digest
        from ckptcheck.runtime.worker.ckptcheck_worker.packed_weights import read_packed_weight

        names, digests, unseen = frozenset(sent), dict[str, str](), dict[str, str]()
        modules = dict(self._model.named_modules(remove_duplicate=False))
        for name, tensor in self._model.named_parameters():
            owner, _, last = name.rpartition(".")
            weight, prefix = tensor, ""
            if not tensor.numel():
                weight, prefix = read_packed_weight(modules[owner]) if last == "weight" else None, "computed:"
            if weight is None:
                unseen[f"0/{name}"] = EMPTY
                continue
            for part, view in split_fused(name, weight, modules[owner], names):
                if part in names and not includes(part):
                    continue
                rows = choose_rows(part, view.shape) if part in names else None
                digests[f"0/{part}"] = prefix + (digest(view) if rows is None else digest_rows(view, rows))
        return EngineWeights(digests, unseen)

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
        from ckptcheck.runtime.servers.client import ServerClient
        from ckptcheck.runtime.servers.detect_engine import detect_engine

        if not self._servers:
            key = os.environ.get("CKPTCHECK_API_KEY")
            clients = [ServerClient(url, remote=self._remote, key=key) for url in self._urls]
            self._servers = [detect_engine(client, seconds=min(self._seconds, SOON)) for client in clients]
        return self._servers


def module(model: Any, name: str = "engine") -> WatchedEngine:
    """Watch a torch module in this process, for an engine that runs in the trainer's process. name: for the record."""
    return _ModuleSide(model, name)


def servers(*urls: str, allow_remote: bool = False, seconds: float = 30.0) -> WatchedEngine:
    """Watch running SGLang or vLLM servers by their own checksums and weight versions.

    allow_remote: whether they may be on other machines. seconds: time limit for the checksums of one server, which hashes
    every weight; a large model needs more. The API key comes from the environment variable CKPTCHECK_API_KEY. vLLM has
    checksums from 0.32 on, in dev mode. The hash is the engine's own, so it shows that a weight changed, and not whether it
    equals the trainer's.
    """
    return _ServersSide(urls, allow_remote, seconds)
