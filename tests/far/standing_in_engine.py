"""Stands in for vLLM's far side: the same verbs, over the fake engine."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT), str(Path(__file__).parent)]

import dataclasses  # noqa: E402
import json  # noqa: E402

from faults import faulty  # noqa: E402
from safetensors.numpy import load, load_file  # noqa: E402

from ckptcheck.engines.base import Parcel  # noqa: E402
from ckptcheck.engines.fake import FakeEngine  # noqa: E402
from ckptcheck.engines.fake_fault import Fault  # noqa: E402


def start(model: str) -> dict[str, Any]:
    global ENGINE
    files = set(json.loads((Path(model) / "model.safetensors.index.json").read_text())["weight_map"].values())
    tensors = {name: value for file in files for name, value in load_file(Path(model) / file).items()}
    ENGINE = FakeEngine(tensors, [Fault("rotary")] if "CKPTCHECK_ROTARY" in os.environ else [])
    facts = {"weight_transfer": "gloo", "device": "cpu"}
    told = {"version": "0", "dtype": "float32", "ranks": 1, "architecture": "LlamaForCausalLM", "facts": facts}
    return {**told, "switches": {}}


def ask(method: str, arguments: list[Any]) -> list[Any]:
    if method == "memory":
        return [[0, ENGINE.memory()]]
    said = getattr(ENGINE, method)(*arguments)
    if method == "scramble":
        return [{"rank": 0, "names": [name for _, name in said.names], "left": {}}]
    if method == "manifest":
        entries = [[e.name, e.kind, e.dtype, e.shape, e.nbytes, e.digest, e.place, e.opaque] for e in said.values()]
        return [{"rank": 0, "entries": entries}]
    entries = [[name, left.count, left.total, left.ranges, left.blank, left.blanks] for (_, name), left in said.items()]
    return [{"rank": 0, "entries": entries}]


def load_parcels(parcels: list[dict[str, Any]], raw: bool) -> dict[str, Any]:
    made = [Parcel(each["address"], each["names"], each["dtypes"], (), each["nbytes"]) for each in parcels]
    return dataclasses.asdict(ENGINE.refit(made, "reload"))


def transfer(parcels: list[dict[str, Any]]) -> dict[str, Any]:
    """Take all weights from the trainer, who holds the meeting place."""
    group = parcels[0]["address"]
    end = time.monotonic() + group["timeout"]
    while True:
        try:
            wire = socket.create_connection((group["host"], group["port"]))
            break
        except OSError as error:
            if time.monotonic() > end:
                return {"ok": False, "message": f"TimeoutError: {error}", "seconds": 0.0}
            time.sleep(0.02)
    data = b""
    while piece := wire.recv(1 << 20):
        data += piece
    if not data:
        return {"ok": False, "message": "RuntimeError: Connection closed by peer", "seconds": 0.0}
    for name, value in load(data).items():
        ENGINE._write(name, value, faulty=True)
    ENGINE._finish()
    return {"ok": True, "message": "", "seconds": 0.0, "version": "1"}


def score(sequences: list[list[int]], decode: int) -> list[dict[str, Any]]:
    return [dataclasses.asdict(each) for each in ENGINE.score(sequences, decode=decode)]


def follow(sequences: list[list[int]], prompt: int) -> Any:
    return ENGINE.follow(sequences, prompt)


def sleep(level: int) -> None:
    pass


def wake(tags: list[str] | None) -> None:
    pass


def reset_prefix_cache() -> None:
    ENGINE.reset_prefix_cache()


def fetch(wanted: list[list[str]], path: str) -> None:
    ENGINE.fetch([(0, name) for name in wanted[0]], Path(path).parent)


SERVED = {"start": start, "ask": ask, "load": load_parcels, "transfer": transfer, "score": score, "follow": follow}
REST = {"fetch": fetch, "sleep": sleep, "wake": wake, "reset_prefix_cache": reset_prefix_cache}
VERBS = faulty("engine", {**SERVED, **REST})
