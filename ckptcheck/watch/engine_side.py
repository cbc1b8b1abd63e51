"""The engine's side of a watch: reads the weights that the engine holds, and its weight version."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ckptcheck.runtime.servers.base import Server

SOON = 5.0
"""Seconds for a server to report its version, which needs no scheduler."""


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


class _ModuleSide:
    """A torch module in this process."""

    alike = True

    def __init__(self, model: Any, name: str) -> None:
        self._model, self.name = model, name

    def held(self) -> Mapping[str, str]:
        """Digest the parameters on their own devices."""
        from ckptcheck.runtime.worker.ckptcheck_worker.digest import digest

        return {f"0/{name}": digest(tensor) for name, tensor in self._model.named_parameters()}

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
