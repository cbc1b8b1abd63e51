"""Doors that a server answers: the Hub, and running engines that are attached to.

The Hub is real HTTP over the loopback interface, whose listings, redirects, headers and files a seed changes. The engines' answers
are handed to the client as bytes, since only what it makes of them differs from one to the next.
"""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, Self
from unittest import mock

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.refit.running_servers.attach import AttachOptions, attach_to_servers
from ckptcheck.live.runtime.servers.client import ServerClient
from tests.doubles import hub_server
from tests.doubles.junk_server import sglang, vllm
from tests.fuzz import CHECKPOINTS, damaged
from tests.fuzzing.batches import copy_flat
from tests.fuzzing.documents import change_json, require_no_crash

BASES = ("tiny-llama", "tiny-llama-sharded", "tiny-chat")
HEADERS = {
    "Content-Length": ["-1", "0", "99999999999", "1e3", "x", ""],
    "Content-Range": ["bytes 0-7/*", "bytes 5-1/3", "x", "bytes 0-99999999999/8"],
    "Location": ["/", "http://127.0.0.1:1/x", "file:///etc/passwd", "//", "http://[", "x" * 5000],
    "Link": ['<x>; rel="next"', "<", '<http://[>; rel="next"'],
    "X-Linked-Size": ["-1", "x", "9" * 30],
    "X-Repo-Commit": ["../..", "", "x" * 3000],
    "Content-Encoding": ["gzip", "br", "deflate", "x"],
    "ETag": ["", "\xff", "x" * 3000],
    "Transfer-Encoding": ["chunked", "gzip"],
    "X-Error-Code": ["GatedRepo", "::error::x"],
    "Retry-After": ["0", "x", "-1"],
}
WAYS: tuple[Any, ...] = ("whole", "half", "short", "drop", "other-part", "html")


class _ChangedHandler(hub_server._Handler):
    """Changes what the Hub sends, by the dice of the seed."""

    dice: random.Random

    def _json(self, value: object, headers: Any = hub_server.NONE) -> None:
        raw = json.dumps(value).encode()
        if self.dice.random() < 0.3:
            raw = change_json(raw, self.dice)
        self._send(200, {"Content-Type": "application/json", **headers}, raw)

    def _send(self, status: int, headers: Any, body: bytes = b"") -> None:
        changed = dict(headers)
        if self.dice.random() < 0.1:
            name = self.dice.choice(sorted(HEADERS))
            changed[name] = self.dice.choice(HEADERS[name])
        if self.dice.random() < 0.05:
            status = self.dice.choice([100, 200, 204, 206, 301, 302, 304, 400, 401, 403, 404, 416, 429, 500, 503])
        super()._send(status, changed, body)


REAL_CONNECTIONS = 500
"""One input of so many goes over real connections, which take a tenth of a second."""


class ThreadAtOnce:
    """A thread that does its work where it is started: in memory nothing is waited for."""

    def __init__(self, target: Callable[[], None], **_: object) -> None:
        self.start = target


class InMemoryHub(hub_server.HubServer):
    """A Hub to which no connection leads: `InMemoryNetwork` hands it requests."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers.values():
            server.server_close()
        if self.bugs:
            raise self.bugs[0]


class InMemoryNetwork:
    """The network under the HTTP client: what is written to a connection is answered by the Hub at once, without any wait."""

    def __init__(self, hub: hub_server.HubServer, errors: Any) -> None:
        self.hub, self.errors = hub, errors

    def connect_tcp(self, host: str, port: int, *_: object, **__: object) -> InMemoryConnection:
        """Return a connection to the Hub or its CDN. Raises ConnectError for any other address."""
        name = {self.hub.host: "hub", self.hub.cdn_host: "cdn"}.get(f"{host}:{port}")
        if name is None:
            raise self.errors.ConnectError("nothing listens there")
        return InMemoryConnection(self, name)


class InMemoryConnection:
    """A connection; also the socket that the server's handler sees."""

    def __init__(self, network: InMemoryNetwork, name: str) -> None:
        self.network, self.name = network, name
        self.asked, self.answer, self.is_closed = b"", b"", False

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Keep a request; answer it once it is whole."""
        self.asked += buffer
        if self.asked.endswith(b"\r\n\r\n"):
            connection = self

            class Handler(_ChangedHandler):
                def handle(self) -> None:
                    self.handle_one_request()
                    connection.is_closed |= self.close_connection

            try:
                Handler(self.network.hub, self.name, self, ("127.0.0.1", 1), None)
            except OSError:
                self.is_closed = True
            except Exception as error:
                self.network.hub.bugs.append(error)
            self.asked = b""

    def read(self, most: int, timeout: float | None = None) -> bytes:
        """Return the next bytes of the answer; b"" where the server has closed. Raises ReadTimeout where nothing comes."""
        part, self.answer = self.answer[:most], self.answer[most:]
        if not part and not self.is_closed:
            raise self.network.errors.ReadTimeout("nothing comes")
        return part

    def makefile(self, *_: object) -> BytesIO:
        """Return what was asked, for the handler."""
        return BytesIO(self.asked)

    def sendall(self, raw: bytes) -> None:
        """Take a part of the answer from the handler."""
        self.answer += bytes(raw)

    def close(self) -> None:
        """Keep no more."""
        self.is_closed = True

    def get_extra_info(self, info: str) -> Any:
        """Say whether the connection has ended, as the pool asks."""
        return self.is_closed if info == "is_readable" else None


def check_hub(seed: int, folder: Path) -> None:
    """Serve a checkpoint as a Hub does that lies, and run every rule that reads headers and configurations."""
    import huggingface_hub

    from ckptcheck.checkpoint import hub_requests, lost_time

    dice = random.Random(seed)
    _ChangedHandler.dice = dice
    path = copy_flat(CHECKPOINTS / dice.choice(BASES), folder / "ckpt")
    for file in sorted(path.iterdir()):
        if dice.random() < 0.1:
            file.write_bytes(damaged(file.read_bytes(), dice))
    for name in list(os.environ):
        if name.upper().startswith(("HF_", "HUGGING")) or name.lower().endswith("_proxy"):
            del os.environ[name]
    os.environ["NO_PROXY"] = "*"
    if through_system := seed % REAL_CONNECTIONS == 0:
        huggingface_hub.close_session()
    with (
        mock.patch.object(hub_server, "_Handler", _ChangedHandler),
        mock.patch.multiple(
            hub_requests,
            sleep=id,
            Thread=threading.Thread if through_system else ThreadAtOnce,
            READ_TIMEOUT=0.2,
            CONNECT_TIMEOUT=0.5,
            HEAD_SECONDS=0.3,
        ),
        mock.patch.object(lost_time, "MAX_LOST_SECONDS", 2.0),
        hub_server.HubServer() if through_system else InMemoryHub() as server,
        mock.patch.dict(os.environ, {"HF_ENDPOINT": server.url}),
        suppress(CkptcheckError),
    ):
        if not through_system:
            pool = huggingface_hub.get_session()._transport._pool  # type: ignore[attr-defined]
            pool._connections = []
            pool._network_backend = InMemoryNetwork(server, import_module(type(pool).__module__.partition(".")[0]))
        server.push("acme/tiny", path)
        server.page = dice.choice([1, 2, 1000, 1000])
        server.deep = dice.random() < 0.1
        server.endless = dice.random() < 0.02
        if dice.random() < 0.4:
            server.fail(
                dice.choice(["", "cdn", "tree", "resolve", "config"]),
                way=dice.choice(WAYS),
                times=dice.choice([1, 2, None]),
            )
        for file in path.iterdir():
            if dice.random() < 0.1:
                server.listed_sizes[file.name] = dice.choice([0, 1, 8, 9, 1 << 40, -1, file.stat().st_size - 1])
        require_no_crash(open_checkpoint("hf://acme/tiny", jobs=1), "checkpoint", "config", "layers", "index")
    if through_system:
        huggingface_hub.close_session()


def check_engine_server(seed: int, folder: Path) -> None:
    """Attach to two engines that answer with changed JSON, and run the rules on them."""
    dice = random.Random(seed)
    answers = [dice.choice([sglang, vllm])() for _ in range(2)]
    changed = dice.sample(sorted({path for table in answers for path in table}), dice.choice([1, 1, 2, 4]))

    def answer(client: ServerClient, _method: str, path: str, body: bytes | None, _timeout: float) -> bytes:
        table = answers[client.url.endswith("9")]
        plain = path.partition("?")[0]
        if plain not in table:
            raise CkptcheckError("404")
        value = _complete(json.loads(body or b"{}")) if callable(table[plain]) else table[plain]
        raw = json.dumps(value).encode()
        return change_json(raw, dice) if plain in changed and dice.random() < 0.8 else raw

    options = AttachOptions(["http://127.0.0.1:8", "http://127.0.0.1:9"], start_trainer=_no_trainer)
    with mock.patch.object(ServerClient, "_ask", answer), suppress(CkptcheckError):
        require_no_crash(attach_to_servers(None, options, lambda _: None), "servers")


def _no_trainer(*_: Any) -> Any:
    raise CkptcheckError("there is no trainer")


def _complete(body: dict[str, Any]) -> Any:
    if "input_ids" in body:
        return [
            {
                "output_ids": [1],
                "meta_info": {
                    "input_token_logprobs": [
                        [None if place == 0 else -1.0, token, None] for place, token in enumerate(tokens)
                    ],
                    "output_token_logprobs": [[-1.0, 1, None]],
                    "cached_tokens": 0,
                },
            }
            for tokens in body["input_ids"]
        ]
    choices = [
        {
            "index": index,
            "logprobs": {"token_logprobs": [-1.0]},
            "token_ids": [1],
            "prompt_logprobs": [None, *({str(token): {"logprob": -1.0, "rank": 1}} for token in tokens[1:])],
        }
        for index, tokens in enumerate(body.get("prompt", []))
    ]
    return {"choices": choices}
