"""Writes deltas as slime, miles and ModelExpress publish them, and as verl sends them, from the formats' descriptions alone."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import xxhash
from numpy.typing import NDArray

from tests.factories.comparison_cases import read_bytes, read_header, write_bytes

Bytes = NDArray[np.uint8]
Weights = dict[str, Bytes]
"""Tensor → its bytes."""
INDEX = "model.safetensors.index.json"
TORCH_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def read_weights(folder: Path) -> Weights:
    """The bytes of every tensor of a checkpoint; they can be written to."""
    return {
        name: np.frombuffer(bytearray(data), np.uint8)
        for path in sorted(folder.glob("*.safetensors"))
        for name, (_, data) in read_bytes(path).items()
    }


def write_weights(folder: Path, weights: Mapping[str, Bytes]) -> None:
    """Put these bytes into the tensors of a checkpoint."""
    for path in sorted(folder.glob("*.safetensors")):
        shapes = {name: tuple(entry["shape"]) for name, entry in read_header(path).items()}
        tensors = {name: (dtype, weights[name].tobytes()) for name, (dtype, _) in read_bytes(path).items()}
        write_bytes(path, tensors, shapes)


def take_step(weights: Weights, seed: int, share: float = 0.02, width: int = 2) -> Weights:
    """The weights after a sparse update: the last bit of a share of the elements is another."""
    rng, after = np.random.default_rng(seed), {}
    for name, data in weights.items():
        elements = data.copy().view(f"<u{width}")
        chosen = rng.random(len(elements)) < share
        elements[chosen] ^= 1
        after[name] = elements.view(np.uint8)
    return after


def take_adam_step(weights: Weights, seed: int, rate: float = 1e-5) -> Weights:
    """BF16 weights after a first step of Adam, which moves each by the learning rate: most are rounded back to what they were."""
    rng, after = np.random.default_rng(seed), {}
    for name, data in weights.items():
        numbers = (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
        moved = numbers + np.float32(rate) * rng.choice(np.array([-1, 1], np.float32), len(numbers))
        bits = moved.view(np.uint32).astype(np.uint64)
        after[name] = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").view(np.uint8)
    return after


def compute_checksum(algorithm: str, data: Bytes) -> str:
    """A tensor's checksum as the index names it."""
    if algorithm == "adler32":
        return f"{zlib.adler32(data.tobytes()):08x}"
    if algorithm == "blake3":
        blake3 = pytest.importorskip("blake3")
        return str(blake3.blake3(data.tobytes()).hexdigest())
    return xxhash.xxh3_128(data.tobytes()).hexdigest()


def encode_change(encoding: str, before: Bytes, after: Bytes) -> bytes:
    """What is compressed: the exclusive or of all bytes, or the number of changed bytes, their places and their values."""
    if encoding == "xor":
        return (before ^ after).tobytes()
    places = np.flatnonzero(before != after).astype("<u4")
    return np.uint32(len(places)).tobytes() + places.tobytes() + after[places].tobytes()


def compress(raw: bytes) -> Bytes:
    """One zstd frame of level 1."""
    zstandard = pytest.importorskip("zstandard")
    return np.frombuffer(zstandard.ZstdCompressor(level=1).compress(raw), np.uint8)


def write_disk_delta(
    folder: Path,
    before: Weights,
    after: Weights,
    *,
    version: Any = "000001",
    base: Any = "000000",
    encoding: str = "xor",
    checksum: str = "xxh3-128",
    files: int = 1,
    metadata: Mapping[str, Any] | None = None,
    raw: Mapping[str, bytes] | None = None,
) -> Path:
    """Write the delta between two sets of weights. raw: tensor → what is compressed in place of its change."""
    folder.mkdir(parents=True)
    changed = [name for name in after if not np.array_equal(before[name], after[name])]
    weight_map = {}
    for number in range(files):
        names = changed[number::files]
        if not names:
            continue
        file = f"model-{number:05d}-of-{files:05d}.safetensors"
        tensors = {
            name: compress((raw or {}).get(name) or encode_change(encoding, before[name], after[name]))
            for name in names
        }
        sums = {name: compute_checksum(checksum, after[name]) for name in names}
        (folder / file).write_bytes(safetensors.numpy.save(tensors, metadata=sums))
        weight_map |= dict.fromkeys(names, file)
    document = {
        "metadata": {
            "version": version,
            "base_version": base,
            "delta_encoding": encoding,
            "compression_format": "zstd",
            "checksum_format": checksum,
        }
        | dict(metadata or {}),
        "weight_map": weight_map,
    }
    (folder / INDEX).write_text(json.dumps(document))
    return folder


def hash_flush(positions: Bytes, values: NDArray[Any], dtype: str) -> int:
    """verl's checksum: all bytes of the positions, and all values as doubles, joined by exclusive or."""
    numbers = (
        (values.astype(np.uint32) << 16).view(np.float32)
        if dtype == "BF16"
        else values.view({2: "<f2", 4: "<f4"}[values.itemsize])
    )
    total = 0
    with np.errstate(invalid="ignore"):
        doubles = numbers.astype(np.float64)
    for word in doubles.view(np.uint64).tolist():
        total ^= word << 1
    for byte in positions.tolist():
        total ^= byte
    return total


def write_flush(
    path: Path,
    before: Weights,
    after: Weights,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    dtype: str = "BF16",
    encoding: str = "indices",
    changes: Mapping[str, Any] | None = None,
    verify: bool = False,
    places: Mapping[str, tuple[list[int], list[int]]] | None = None,
    params: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write a flush of verl: the elements that differ.

    changes: put over the spec. places: tensor → positions and values in place of what changed. params: put over the entries of
    the spec, one after the other.
    """
    width = {"BF16": 2, "F16": 2, "F32": 4}[dtype]
    entries, positions, values = [], [], []
    at = count = 0
    for name, shape in shapes.items():
        ours, theirs = before[name].view(f"<u{width}"), after[name].view(f"<u{width}")
        chosen = np.flatnonzero(ours != theirs) if encoding == "indices" else np.arange(len(ours))
        sent = theirs[chosen]
        if name in (places or {}):
            chosen, sent = np.array(places[name][0], np.int64), np.array(places[name][1], f"<u{width}")
        if not len(chosen):
            continue
        length = 4 * len(chosen) if encoding == "indices" else 0
        entry = {
            "name": name,
            "dtype": TORCH_NAMES[dtype],
            "shape": list(shape),
            "pos_start": at,
            "pos_end": at + length,
        }
        entry |= {"pos_width": 4, "val_start": count, "val_end": count + len(chosen)}
        entries.append(entry | dict(params[len(entries)] if len(entries) < len(params) else {}))
        if encoding == "indices":
            positions.append(chosen.astype("<i4").view(np.uint8))
        values.append(sent)
        at, count = at + length, count + len(chosen)
    flat = np.concatenate(values) if values else np.zeros(0, f"<u{width}")
    places = np.concatenate(positions) if positions else np.zeros(0, np.uint8)
    spec = {"encoding": encoding, "params": entries, "checksum": hash_flush(places, flat, dtype)}
    if verify:
        spec["verify"] = True
    text = json.dumps(spec | dict(changes or {})).encode()
    tensors = {"__values__": (dtype, flat.tobytes()), "__delta_spec__": ("U8", text)} | (
        {"__positions__": ("U8", np.concatenate(positions).tobytes())} if positions else {}
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    sizes = {"__delta_spec__": (len(text),), "__values__": (len(flat),), "__positions__": (at,)}
    write_bytes(path, tensors, sizes)
    return path
