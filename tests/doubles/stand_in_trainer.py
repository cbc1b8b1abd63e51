"""Stands in for the worker of the transformers trainer: the same functions, over weights that the fake engine scores."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

import numpy as np  # noqa: E402
from safetensors.numpy import load_file, save, save_file  # noqa: E402

from ckptcheck.live.runtime.engines.digest import digest  # noqa: E402
from ckptcheck.values.shard_digest import sum_shard  # noqa: E402
from tests.doubles.fake_engine import FakeEngine  # noqa: E402
from tests.doubles.stand_in_faults import faulty, note  # noqa: E402

HELD: dict[str, Any] = {}


def load(folder: str, dtype: str) -> dict[str, Any]:
    HELD.update(load_file(Path(folder) / "model.safetensors"))
    plan = [{"name": name, "shape": list(values.shape)} for name, values in HELD.items()]
    return {"version": "0", "torch": "0", "device": "cpu", "plan": plan}


def score(sequences: list[list[int]]) -> list[Any]:
    return [each.prompt_logprobs for each in FakeEngine(HELD).score(sequences)]


def decode_greedy(tokens: list[int], number: int) -> Any:
    return FakeEngine(HELD).score([tokens], decode=number)[0].decoded_tokens


def step(sequences: list[list[int]], seed: int, rate: float) -> dict[str, Any]:
    scores = score(sequences)
    perturb(0.05, seed)
    return {"scores": scores, "grad_norm": 1.0, "unchanged": []}


def perturb(scale: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    for name, values in HELD.items():
        HELD[name] = (values * (1 + scale * draw.standard_normal(values.shape))).astype(np.float32)


def export(buckets: list[list[int]], addresses: list[dict[str, str]]) -> list[dict[str, Any]]:
    names, parcels = list(HELD), []
    for (begin, end), address in zip(buckets, addresses, strict=True):
        part = {name: HELD[name] for name in names[begin:end]}
        save_file(part, address["path"], {"format": "pt"})
        note(f"folder:{Path(address['path']).parent}")
        parcels.append({**address, "tensors": len(part), "bytes": sum(value.nbytes for value in part.values())})
    return parcels


def send(group: dict[str, Any]) -> None:
    with socket.create_server((group["host"], group["port"])) as meeting:
        meeting.settimeout(group["timeout"])
        wire, _ = meeting.accept()
    with wire:
        wire.sendall(save(HELD))


def digests() -> dict[str, str]:
    return {name: digest(values) for name, values in HELD.items()}


def shard_digests(pieces: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    return [
        {"name": name, "axis": 0, "begin": 0, "end": len(values), "rank": 0, "own": name}
        | {"held": digest(values), "exported": digest(values), "sums": sum_shard(values)}
        for name, values in HELD.items()
    ]


SERVED = {
    "load": load,
    "score": score,
    "decode_greedy": decode_greedy,
    "step": step,
    "export": export,
    "send": send,
    "perturb": perturb,
    "shard_digests": shard_digests,
}
RPC_METHODS = faulty("trainer", {**SERVED, "digests": digests})
