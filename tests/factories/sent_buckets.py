"""Plays the trainer's part: puts tensors into buckets on a plane."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from ckptcheck.live.runtime.engines.base import Bucket
from ckptcheck.live.runtime.process.exchange import TensorExchange

DTYPES = {"float32": "F32", "float16": "F16", "int32": "I32", "int64": "I64"}


def read_weights(checkpoint: Path) -> dict[str, np.ndarray]:
    """Read all tensors of a checkpoint of one shard."""
    return load_file(checkpoint / "model.safetensors")


def perturb_weights(tensors: Mapping[str, np.ndarray], scale: float = 0.02, seed: int = 1) -> dict[str, np.ndarray]:
    """Return tensors of which every element moved a little, as after an optimizer step."""
    draw = np.random.default_rng(seed)
    return {n: (t * (1 + scale * draw.standard_normal(t.shape))).astype(t.dtype) for n, t in tensors.items()}


def write_checkpoint(base: Path, tensors: Mapping[str, np.ndarray], folder: Path) -> Path:
    """Write a checkpoint with the configuration of another."""
    folder.mkdir()
    (folder / "config.json").write_text((base / "config.json").read_text())
    save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_buckets(tensors: Mapping[str, np.ndarray], exchange: TensorExchange, most: float = math.inf) -> list[Bucket]:
    """Put tensors on the plane in buckets of at most so many bytes, in order."""
    groups: list[dict[str, np.ndarray]] = [{}]
    for name, tensor in tensors.items():
        if groups[-1] and sum(each.nbytes for each in groups[-1].values()) + tensor.nbytes > most:
            groups.append({})
        groups[-1][name] = np.ascontiguousarray(tensor)
    return [_write_bucket(group, exchange) for group in groups]


def _write_bucket(group: dict[str, np.ndarray], exchange: TensorExchange) -> Bucket:
    address = exchange.address(f"bucket-{len(list(exchange.folder.iterdir()))}")
    save_file(group, address["path"])
    nbytes = sum(tensor.nbytes for tensor in group.values())
    return Bucket(
        {**address, "tensors": len(group), "bytes": nbytes},
        tuple(group),
        tuple(DTYPES[str(tensor.dtype)] for tensor in group.values()),
        tuple(tensor.shape for tensor in group.values()),
        nbytes,
    )
