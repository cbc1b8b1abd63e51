"""Detects which engine a server runs, by its responses."""

from __future__ import annotations

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.servers.base import Server
from ckptcheck.live.runtime.servers.client import ServerClient
from ckptcheck.live.runtime.servers.errors import Rejected, RequestTimeout, ServerError, Unreachable
from ckptcheck.live.runtime.servers.sglang import SglangServer
from ckptcheck.live.runtime.servers.vllm import VllmServer

NOT_THERE = (404, 405)
"""With these statuses a server says that it has no such endpoint; with any other error it has it and refuses."""


def detect_engine(client: ServerClient, *, seconds: float) -> Server:
    """Return the server behind a client. Raises ServerError without an answer, CkptcheckError for another program."""
    sglang, vllm = SglangServer(client), VllmServer(client)
    errors: list[ServerError] = []
    try:
        sglang.model(seconds=seconds)
    except (Unreachable, RequestTimeout):
        raise
    except ServerError as error:
        errors.append(error)
    else:
        return sglang
    try:
        vllm.version(seconds=seconds)
    except (Unreachable, RequestTimeout):
        raise
    except ServerError as error:
        errors.append(error)
    else:
        return vllm
    refusal = next((error for error in errors if isinstance(error, Rejected) and error.status not in NOT_THERE), None)
    if refusal is not None:
        raise refusal
    raise CkptcheckError(
        f"{client.url} answers, but neither as SGLang (/model_info) nor as vLLM (/version) does: "
        f"{errors[-1].message.removeprefix(client.url)}",
        "give the address of an engine, not of a router or gateway before it",
    )
