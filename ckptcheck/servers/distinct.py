"""Two addresses that lead to one server: it would be held against itself, and agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ckptcheck.errors import CkptcheckError
from ckptcheck.servers.client import Client

ONCE = "name every server once"


def refuse_same_place(clients: Sequence[Client]) -> None:
    """Refuse addresses that lead to one port of one machine. Raises CkptcheckError, also where a name leads nowhere."""
    for number, client in enumerate(clients):
        for other in clients[:number]:
            if client.places & other.places:
                if client.url == other.url:
                    raise CkptcheckError(f"{client.url} is named twice, and a server always agrees with itself", ONCE)
                raise CkptcheckError(
                    f"{other.url} and {client.url} are one server, and it always agrees with itself", ONCE
                )


def refuse_same_instance(instances: Mapping[str, str]) -> None:
    """Refuse servers that say that they are one: behind tunnels and forwarded ports, addresses do not tell.

    instances: address → what tells a server that runs from every other (`About.instance`), "" where it does not say.
    """
    seen: dict[str, str] = {}
    for url, instance in instances.items():
        if instance and (other := seen.setdefault(instance, url)) != url:
            raise CkptcheckError(f"{other} and {url} lead to one server, and it always agrees with itself", ONCE)
