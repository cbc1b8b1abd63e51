"""Which engine a server is, by what it answers and not by what we are told."""

from __future__ import annotations

from ckptcheck.errors import CkptcheckError
from ckptcheck.servers.base import Server
from ckptcheck.servers.client import Client
from ckptcheck.servers.sglang import SglangServer
from ckptcheck.servers.trouble import Gone, Refused, ServerTrouble, Silent
from ckptcheck.servers.vllm import VllmServer

NOT_THERE = (404, 405)
"""With these a server says that it does not know an endpoint; with any other it knows it, and refuses."""


def recognize(client: Client, *, seconds: float) -> Server:
    """Return the server behind a client. Raises ServerTrouble where nobody answers, CkptcheckError for another program."""
    sglang, vllm = SglangServer(client), VllmServer(client)
    said: list[ServerTrouble] = []
    try:
        sglang.model(seconds=seconds)
    except (Gone, Silent):
        raise
    except ServerTrouble as trouble:
        said.append(trouble)
    else:
        return sglang
    try:
        vllm.version(seconds=seconds)
    except (Gone, Silent):
        raise
    except ServerTrouble as trouble:
        said.append(trouble)
    else:
        return vllm
    refusal = next((each for each in said if isinstance(each, Refused) and each.status not in NOT_THERE), None)
    if refusal is not None:
        raise refusal
    raise CkptcheckError(
        f"{client.url} answers, but neither as SGLang (/model_info) nor as vLLM (/version) does: "
        f"{said[-1].message.removeprefix(client.url)}",
        "give the address of an engine, not of a router or gateway before it",
    )
