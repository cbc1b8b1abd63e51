"""The door of deltas: folders of slime's and flushes of verl's, damaged in their index, headers, spec, frames and numbers."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path

import numpy as np

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.deltas.open import open_lone_deltas
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.compare.identity import identify_checkpoint
from ckptcheck.errors import CkptcheckError
from tests.factories.comparison_cases import write_bytes
from tests.factories.deltas import INDEX, Weights, encode_change, take_step, write_disk_delta, write_flush
from tests.fuzz import damaged
from tests.fuzzing.documents import change_json, require_no_crash
from tests.fuzzing.tensor_bytes import change_tensors

SHAPES = {"a.weight": (8, 16), "b.weight": (24,), "c": ()}


def check_deltas(seed: int, folder: Path) -> None:
    """Damage a chain of two deltas, and read all that it leads to; what is refused with a sentence is well."""
    dice = random.Random(seed)
    before: Weights = {
        name: np.frombuffer(bytearray(dice.randbytes(2 * int(np.prod(shape)))), np.uint8)
        for name, shape in SHAPES.items()
    }
    base = folder / "base"
    base.mkdir()
    write_bytes(
        base / "model.safetensors", {name: ("BF16", data.tobytes()) for name, data in before.items()}, dict(SHAPES)
    )
    if dice.random() < 0.15:
        path = base / "model.safetensors"
        path.write_bytes(change_tensors(path.read_bytes(), dice))
    parts = [str(base)]
    for number in (1, 2):
        after = take_step(before, seed + number, 0.3)
        target = folder / f"delta{number}"
        if dice.random() < 0.6:
            _write_disk(target, before, after, number, dice)
        else:
            _write_flush(target, before, after, dice)
        parts.append(str(target))
        before = after
    with suppress(CkptcheckError):
        _read_all(open_checkpoint("+".join(parts), jobs=1))
    if (alone := open_lone_deltas(parts[1])) is not None:
        require_no_crash(alone, "deltas")


def _write_disk(folder: Path, before: Weights, after: Weights, number: int, dice: random.Random) -> None:
    encoding, raw = dice.choice(["xor", "overwrite"]), {}
    if dice.random() < 0.5:
        name = dice.choice([name for name in SHAPES if not np.array_equal(before[name], after[name])] or ["a.weight"])
        raw[name] = _damage_change(encode_change(encoding, before[name], after[name]), dice)
    checksum = dice.choice(["xxh3-128", "adler32", "blake3"])
    write_disk_delta(
        folder, before, after, version=number, base=number - 1, encoding=encoding, checksum=checksum, raw=raw, files=2
    )
    if dice.random() < 0.15:
        index = folder / INDEX
        index.write_bytes(change_json(index.read_bytes(), dice))
    if dice.random() < 0.2:
        _damage_file(dice.choice(sorted(folder.iterdir())), dice)


def _write_flush(folder: Path, before: Weights, after: Weights, dice: random.Random) -> None:
    changes = None
    if dice.random() < 0.5:
        name = dice.choice(["a.weight", "b.weight"])
        bound = dice.choice([10, 2**31 - 1])
        count = dice.choice([1, 3, 200])
        changes = {
            name: ([dice.randrange(-bound, bound) for _ in range(count)], [dice.randrange(2**16) for _ in range(count)])
        }
    path = folder / "flush.safetensors"
    write_flush(path, before, after, SHAPES, encoding=dice.choice(["indices", "dense"]), places=changes)
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    if dice.random() < 0.25:
        begin, end = (start + offset for offset in header["__delta_spec__"]["data_offsets"])
        spec = change_json(raw[begin:end], dice)
        # as long as before, so that the header is right, or not
        if dice.random() < 0.7:
            spec = spec[: end - begin].ljust(end - begin)
        path.write_bytes(raw[:begin] + spec + raw[end:])
    if dice.random() < 0.15:
        _damage_file(path, dice)


def _damage_change(raw: bytes, dice: random.Random) -> bytes:
    match dice.randrange(4):
        case 0:
            return damaged(raw, dice) or b"\0"
        case 1:
            return dice.randbytes(4) + raw[4:]
        case 2:
            return raw + bytes(dice.choice([1, 8, 1 << 16, 1 << 20]))
    return raw[: dice.randrange(1, len(raw) + 1)]


def _damage_file(path: Path, dice: random.Random) -> None:
    raw = path.read_bytes()
    if path.suffix == ".safetensors" and dice.random() < 0.3:
        path.write_bytes(change_tensors(raw, dice))
    elif path.suffix == ".safetensors" and dice.random() < 0.5:
        start = 8 + int.from_bytes(raw[:8], "little")
        header = change_json(raw[8:start], dice)
        path.write_bytes(len(header).to_bytes(8, "little") + header + raw[start:])
    elif dice.random() < 0.1:
        path.unlink()
    else:
        path.write_bytes(damaged(raw, dice))


def _read_all(ckpt: Checkpoint) -> None:
    require_no_crash(ckpt, "deltas")
    for name, file in ckpt.files.items():
        with suppress(OSError):
            ckpt.source.read(name, 0, file.size)
    identify_checkpoint(ckpt, jobs=1)
