"""Stands in for the vLLM worker: the same functions, over the fake engine."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

import dataclasses  # noqa: E402
import json  # noqa: E402

from safetensors.numpy import load, load_file  # noqa: E402

from ckptcheck.live.runtime.engines.base import Bucket, WeightPart  # noqa: E402
from tests.doubles.fake_engine import FakeEngine  # noqa: E402
from tests.doubles.fake_fault import Fault  # noqa: E402
from tests.doubles.stand_in_faults import faulty  # noqa: E402


def start(model: str) -> dict[str, Any]:
    global ENGINE
    index = Path(model) / "model.safetensors.index.json"
    files = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else {"model.safetensors"}
    tensors = {name: value for file in files for name, value in load_file(Path(model) / file).items()}
    ENGINE = FakeEngine(tensors, [Fault("rotary")] if "CKPTCHECK_ROTARY" in os.environ else [])
    facts = {"weight_transfer": "gloo", "device": "cpu"}
    info = {"version": "0", "dtype": "float32", "ranks": 1, "architecture": "LlamaForCausalLM", "facts": facts}
    return {**info, "switches": {}}


def call_ranks(method: str, arguments: list[Any]) -> list[Any]:
    if method == "memory_bytes":
        return [[0, ENGINE.memory_bytes()]]
    if method == "sum_parts":
        return [
            ENGINE.sum_parts(
                [
                    WeightPart("", tuple(full), tuple(origin), 0, name, begin, tuple(shape), pitch)
                    for name, begin, shape, pitch, origin, full in arguments[0][0]
                ]
            )
        ]
    if method == "read_arrivals":
        return []
    if method in ("time_updates", "record_arrivals"):
        return [None]
    if method == "scramble_weights":
        return [{"rank": 0, "names": [name for _, name in ENGINE.scramble_weights().names], "left": {}}]
    if method == "digest_tensors":
        entries = [
            [e.name, e.kind, e.dtype, e.shape, e.nbytes, e.digest, e.storage, e.opaque]
            for e in ENGINE.digest_tensors().values()
        ]
        return [{"rank": 0, "entries": entries}]
    if method == "read_scalars":
        numbers = [[name, isinstance(value, float), repr(value)] for (_, name), value in ENGINE.read_scalars().items()]
        return [{"rank": 0, "entries": numbers}]
    assert method == "find_unwritten", method
    entries = [
        [name, u.sentinel_count, u.total, u.sentinel_ranges, u.nan_count, u.nan_ranges]
        for (_, name), u in ENGINE.find_unwritten().items()
    ]
    return [{"rank": 0, "entries": entries}]


def update_weights(buckets: list[dict[str, Any]], transport: str) -> dict[str, Any]:
    if transport == "gloo":
        return receive_broadcast(buckets[0]["address"])
    decoded = [Bucket(each["address"], each["names"], each["dtypes"], (), each["nbytes"]) for each in buckets]
    return dataclasses.asdict(ENGINE.update_weights(decoded, "reload"))


def receive_broadcast(group: dict[str, Any]) -> dict[str, Any]:
    """Take all weights from the trainer, which listens at the address of the group."""
    deadline = time.monotonic() + group["timeout"]
    while True:
        try:
            connection = socket.create_connection((group["host"], group["port"]))
            break
        except OSError as error:
            if time.monotonic() > deadline:
                return {"ok": False, "message": f"TimeoutError: {error}", "seconds": 0.0}
            time.sleep(0.02)
    data = b""
    while received := connection.recv(1 << 20):
        data += received
    if not data:
        return {"ok": False, "message": "RuntimeError: Connection closed by peer", "seconds": 0.0}
    for name, value in load(data).items():
        ENGINE._write(name, value, faulty=True)
    ENGINE._finish()
    return {"ok": True, "message": "", "seconds": 0.0, "weight_version": "1"}


def score(sequences: list[list[int]], decode: int) -> list[dict[str, Any]]:
    return [dataclasses.asdict(each) for each in ENGINE.score(sequences, decode=decode)]


def generate(prompts: list[list[int]], samplings: list[dict[str, Any]], salt: str) -> list[dict[str, Any]]:
    """Answer greedily, whatever the sampling."""
    answers = []
    for prompt, sampling in zip(prompts, samplings, strict=True):
        tokens = list(ENGINE.score([prompt], decode=sampling["max_tokens"])[0].decoded_tokens)
        logprobs = ENGINE.score_by_decode([[*prompt, *tokens]], len(prompt))[0]
        answers.append({"tokens": tokens, "logprobs": list(logprobs), "finish_reason": "length", "cached_tokens": 0})
    return answers


def score_by_decode(sequences: list[list[int]], prompt: int) -> Any:
    return ENGINE.score_by_decode(sequences, prompt)


def sleep(level: int) -> None:
    pass


def wake(tags: list[str] | None) -> None:
    pass


def reset_prefix_cache() -> None:
    ENGINE.reset_prefix_cache()


def fetch_tensors(names_by_rank: list[list[str]], path: str) -> None:
    ENGINE.fetch_tensors([(0, name) for name in names_by_rank[0]], Path(path).parent)


METHODS = (
    start,
    call_ranks,
    update_weights,
    score,
    score_by_decode,
    generate,
    fetch_tensors,
    sleep,
    wake,
    reset_prefix_cache,
)
RPC_METHODS = faulty("engine", {method.__name__: method for method in METHODS})
