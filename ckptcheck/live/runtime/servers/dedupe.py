"""Refuses two addresses of one server: compared with itself, it always agrees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.servers.client import ServerClient

ONCE = "name every server once"


def refuse_same_place(clients: Sequence[ServerClient]) -> None:
    """Raise CkptcheckError for addresses that lead to one port of one machine, and for names that lead nowhere."""
    known: dict[object, ServerClient] = {}
    for client in clients:
        for endpoint in client.endpoints:
            other = known.setdefault(endpoint, client)
            if other is client:
                continue
            if client.url == other.url:
                raise CkptcheckError(f"{client.url} is named twice, and a server always agrees with itself", ONCE)
            raise CkptcheckError(f"{other.url} and {client.url} are one server, and it always agrees with itself", ONCE)


def refuse_same_instance(instances: Mapping[str, str]) -> None:
    """Raise CkptcheckError for servers that report the same instance: behind tunnels, addresses do not show that.

    instances: address → identifier of a running server (`ServerInfo.instance`); "" if it does not say.
    """
    first_urls: dict[str, str] = {}
    for url, instance in instances.items():
        if instance and (other := first_urls.setdefault(instance, url)) != url:
            raise CkptcheckError(f"{other} and {url} lead to one server, and it always agrees with itself", ONCE)
