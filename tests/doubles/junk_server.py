"""A server on the loopback interface that answers what it is told to: an engine's JSON, junk, or nothing.

Answers are given by path: a JSON value, or a function that is handed the request and does what it likes with the line.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Answer = Any | Callable[[BaseHTTPRequestHandler], None]


class JunkServer:
    """Serves until the end of the ``with`` block. asked: method, path and body of every request."""

    def __init__(self, answers: Mapping[str, Answer], host: str = "127.0.0.1") -> None:
        self.answers = dict(answers)
        self.asked: list[tuple[str, str, Any]] = []
        self.tokens: list[str | None] = []
        self.over = threading.Event()
        self.trickled = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        class Fleet(ThreadingHTTPServer):
            request_queue_size = 1024  # else a crowd of clients waits a second for its connections

        self._http = Fleet((host, 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        length = int(request.headers.get("Content-Length") or 0)
        body = json.loads(request.rfile.read(length)) if length else None
        path = request.path.partition("?")[0]
        self.asked.append((request.command, path, body))
        self.tokens.append(request.headers.get("Authorization"))
        answer = self.answers.get(path, status(404, {"detail": "Not Found"}))
        if callable(answer):
            answer(request)
        else:
            status(200, answer)(request)

    def wait_for_requests(self, number: int) -> None:
        """Wait until so many requests came, a minute at most: a client that gave up may be faster than the server's thread."""
        end = time.monotonic() + 60
        while len(self.asked) < number and time.monotonic() < end:
            self.over.wait(0.01)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def hang(self, request: BaseHTTPRequestHandler) -> None:
        """Answer nothing until the block ends."""
        self.over.wait(30)

    def trickle(self, request: BaseHTTPRequestHandler) -> None:
        """Answer so slowly that no single read ever waits for long; `trickled` counts the bytes, 1,000 at most."""
        request.send_response(200)
        request.end_headers()
        while self.trickled < 1000 and not self.over.wait(0.02):
            try:
                request.wfile.write(b" ")
                self.trickled += 1
            except OSError:
                return


def status(code: int, value: Any) -> Callable[[BaseHTTPRequestHandler], None]:
    """Answer a status with a JSON value, or bytes as they are."""

    def write(request: BaseHTTPRequestHandler) -> None:
        raw = value if isinstance(value, bytes) else json.dumps(value).encode()
        request.send_response(code)
        request.send_header("Content-Length", str(len(raw)))
        request.end_headers()
        try:
            request.wfile.write(raw)
        except OSError:  # the client has seen enough
            return

    return write


def sglang(**changes: Answer) -> dict[str, Answer]:
    """What a SGLang 0.5.23 with a tiny model answers, as recorded from one. changes: path without slashes → answer."""
    answers: dict[str, Answer] = {
        "/model_info": {
            "model_path": "/models/tiny", "is_generation": True, "weight_version": "default",
            "architectures": ["LlamaForCausalLM"],
        },
        "/server_info": {"version": "0.5.23", "dtype": "float32", "tp_size": 1, "pp_size": 1, "device": "cpu"},
        "/generate": generate,
        "/weights_checker": {
            "success": True,
            "message": "Success.",
            "ranks": [{
                "checksums": {"model.norm.weight": "6ff2d2ca1acd52bf", "lm_head.weight": "7c31a78b8580fe74"},
                "per_gpu_checksum": "1c63",
                "parallelism_info": [{"role": "target", "tp_rank": 0, "tp_size": 1, "dp_rank": 0, "pp_rank": 0}],
            }],
        },
    }  # fmt: skip
    return answers | {f"/{name}": answer for name, answer in changes.items()}


def vllm(**changes: Answer) -> dict[str, Answer]:
    """What a vLLM 0.32.0 in dev mode answers."""
    answers: dict[str, Answer] = {
        "/version": {"version": "0.32.0"},
        "/v1/models": {"data": [{"id": "tiny", "owned_by": "vllm", "root": "/models/tiny", "parent": None}]},
        "/v1/completions": complete,
        "/weight_info": {"weight_version": "default"},
        "/weight_checker": {"checksums": {"dp0:pp0:pcp0:tp0:model.norm.weight": "6f" * 32}},
        "/server_info": {
            "vllm_config": {
                "model_config": {"dtype": "torch.float32", "logprobs_mode": "raw_logprobs"},
                "parallel_config": {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "is_moe_model": False},
                "device_config": {"device": "cpu"},
            }
        },
    }
    return answers | {f"/{name}": answer for name, answer in changes.items()}


def generate(request: BaseHTTPRequestHandler) -> None:
    """Answer SGLang's /generate with the logprob -1 for every token."""
    body = last(request)
    answers = [
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
    status(200, answers)(request)


def complete(request: BaseHTTPRequestHandler) -> None:
    """Answer vLLM's /v1/completions with the logprob -1 for every token."""
    body = last(request)
    choices = [
        {
            "index": index,
            "logprobs": {"token_logprobs": [-1.0]},
            "token_ids": [1],
            "prompt_logprobs": [None, *({str(token): {"logprob": -1.0, "rank": 1}} for token in tokens[1:])],
        }
        for index, tokens in enumerate(body["prompt"])
    ]
    status(200, {"choices": choices})(request)


def last(request: BaseHTTPRequestHandler) -> Any:
    """The body that was sent with a request."""
    outer: Any = type(request).do_GET.__closure__
    server: JunkServer = outer[0].cell_contents
    return server.asked[-1][2]
