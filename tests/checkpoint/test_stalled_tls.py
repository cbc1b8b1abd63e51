"""A server that accepts a connection and never ends its TLS handshake is given up in time, by every client."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from ckptcheck.checkpoint import hub_requests
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.live.runtime.servers import client
from ckptcheck.live.runtime.servers.client import ServerClient

LONG = 60.0
"""Seconds within which a client has given up; its own limits are a second here."""


@pytest.fixture(params=["silent", "byte by byte"])
def stalled(request: pytest.FixtureRequest) -> Iterator[str]:
    """A port that accepts connections, reads what comes, and sends nothing, or a record of TLS that never ends."""
    ended = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.1)

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"\x16\x03\x03\x40\x00" if request.param != "silent" else b"")
            while not ended.wait(0.05):
                if request.param != "silent":
                    connection.sendall(b"\x02")

    def accept() -> None:
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    ended.set()
    thread.join()
    listener.close()


def test_an_engine_that_stalls(stalled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CONNECT", 1.0)
    begun = time.monotonic()
    with pytest.raises(CkptcheckError, match=r"did not answer within|cannot be reached"):
        ServerClient(stalled).get("/health", dict)
    assert time.monotonic() - begun < LONG


def test_a_hub_that_stalls(stalled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    for name in list(os.environ):
        if name.upper().startswith(("HF_", "HUGGING")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("HF_ENDPOINT", stalled)
    huggingface_hub.close_session()
    for name, seconds in {
        "CONNECT_TIMEOUT": 0.5,
        "READ_TIMEOUT": 0.5,
        "HEAD_SECONDS": 0.5,
        "WAITS": (0.0, 0.0),
    }.items():
        monkeypatch.setattr(hub_requests, name, seconds)
    begun = time.monotonic()
    with pytest.raises(CkptcheckError, match=r"did not answer within|answers too slowly|cannot be reached"):
        open_checkpoint("hf://acme/tiny")
    assert time.monotonic() - begun < LONG
    huggingface_hub.close_session()


def test_an_object_store_that_stalls(stalled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore", reason="pip install obstore")
    from ckptcheck.checkpoint.objects import bucket_of_obstore as bucket

    for name in list(os.environ):
        if name.upper().startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "key")
    monkeypatch.setenv("AWS_ENDPOINT_URL", stalled)
    for name, seconds in {"REQUEST_SECONDS": 0.5, "CONNECT_SECONDS": 0.5, "RETRY_SECONDS": 1.0}.items():
        monkeypatch.setattr(bucket, name, seconds)
    monkeypatch.setattr(bucket, "RETRIES", 1)
    begun = time.monotonic()
    with pytest.raises(EvidenceError, match=r"s3://models cannot be reached|s3://models did not answer in time"):
        open_checkpoint("s3://models/step_1")
    assert time.monotonic() - begun < LONG
