"""What a watch asks of the engine: which numbers it holds, and under which version."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ckptcheck.servers.base import Server

SOON = 5.0
"""Seconds in which a server says which version it has: no scheduler is asked for that."""


class EngineSide(Protocol):
    """The engine, as a watch sees it. Anything it raises is said as a warning, and the sync counts as not seen.

    One that cannot tell its version after a sync is not asked for its weights: it would keep the training waiting twice.

    name: for the record. alike: its digests are those of `ckptcheck` itself, so that they compare with the trainer's.
    """

    name: str
    alike: bool

    def held(self) -> Mapping[str, str]:
        """Return ``rank/name`` → digest of every weight."""
        ...

    def version(self) -> str | None:
        """Return the weight version that it reports, None where it reports none."""
        ...


class _Module:
    alike = True

    def __init__(self, model: Any, name: str) -> None:
        self._model, self.name = model, name

    def held(self) -> Mapping[str, str]:
        """Digest parameters where they lie."""
        from ckptcheck.host.far.ckptcheck_far.digest import digest

        return {f"0/{name}": digest(tensor) for name, tensor in self._model.named_parameters()}

    def version(self) -> str | None:
        """Return None: a module has none."""
        return None


class _Servers:
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
        """Return the version that all report, or all of them where they differ; those that report none are left out."""
        told = {server.weight_version(seconds=min(self._seconds, SOON)) for server in self._found()}
        return " and ".join(sorted(told - {""})) or None

    def _found(self) -> list[Server]:
        """Look at what the servers are, once they are asked for the first time: they may start after the trainer."""
        from ckptcheck.servers.client import Client
        from ckptcheck.servers.recognize import recognize

        if not self._servers:
            key = os.environ.get("CKPTCHECK_API_KEY")
            clients = [Client(url, remote=self._remote, key=key) for url in self._urls]
            self._servers = [recognize(client, seconds=min(self._seconds, SOON)) for client in clients]
        return self._servers


def module(model: Any, name: str = "engine") -> EngineSide:
    """Watch a torch module in this process: an engine that shares it with the trainer. name: for the record."""
    return _Module(model, name)


def servers(*urls: str, allow_remote: bool = False, seconds: float = 30.0) -> EngineSide:
    """Watch running SGLang or vLLM servers by their own checksums and weight versions.

    allow_remote: they may be on other machines. seconds: for the checksums of one server, which it makes of every weight; give
    more for a model that takes longer. The key is taken from CKPTCHECK_API_KEY. vLLM has checksums from 0.32 on, in dev
    mode. The hash is the engine's own: it tells change, not equality.
    """
    return _Servers(urls, allow_remote, seconds)
