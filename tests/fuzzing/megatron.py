"""Doors of runs of Megatron: a table of contents whose numbers, names and places are changed, and files of ranks.

The table is real; a seed changes values in it and writes it again, so that what is read is a table and not a broken pickle.
"""

from __future__ import annotations

import io
import random
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

import ckptcheck
from ckptcheck.checkpoint.open import open_target
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import Report
from ckptcheck.values.value_pass import ValuePass
from tests.factories import dcp
from tests.factories.checkpoint_cases import MEGATRON
from tests.factories.torch_archives import write_archive
from tests.fuzz import damaged
from tests.fuzzing.batches import copy_flat
from tests.fuzzing.documents import require_no_crash
from tests.fuzzing.pickles import random_pickle

SMALL_TABLES = ("dense", "moe-ep2", "plain-dcp", "tp2-pp2", "per-layer")
TABLES = (*SMALL_TABLES * 3, "optimizer-buckets", "optimizer-model-space")
LEGACY = ("legacy-tp2", "legacy-pp2", "legacy-moe-ep2")
NUMBERS = [
    -1,
    0,
    1,
    2,
    7,
    64,
    1 << 20,
    1 << 31,
    1 << 40,
    (1 << 62) - 1,
    1 << 62,
    1 << 63,
    1 << 64,
    1 << 200,
    None,
    True,
    "x",
    (),
    (1,),
]
NAMES = [
    "",
    "a",
    "model",
    "decoder.layers.0.x",
    "decoder.layers.99999999.x",
    "x" * 500,
    "../../etc/passwd",
    "\0",
    "::error::x",
    "é\ud800",
]
FILES = ["__0_0.distcp", "__1_0.distcp", "../x", "/dev/zero", "", "common.pt", "\0", ".metadata"]


def _other(number: Any, dice: random.Random) -> Any:
    near = [number + step for step in (-1, 1, 2)] + [number * 2] if isinstance(number, int) else []
    return dice.choice([*near, *NUMBERS])


def _change_axis(numbers: tuple[Any, ...], dice: random.Random) -> tuple[Any, ...]:
    changed = list(numbers)
    match dice.randrange(5):
        case 0 if changed:
            del changed[dice.randrange(len(changed))]
        case 1:
            changed.insert(dice.randrange(len(changed) + 1), dice.choice(NUMBERS))
        case 2:
            changed *= dice.choice([2, 30])
        case _ if changed:
            place = dice.randrange(len(changed))
            changed[place] = _other(changed[place], dice)
    return tuple(changed)


def change_table(table: dcp.Table, dice: random.Random) -> None:
    """Change one thing in a table of contents."""
    key = dice.choice(sorted(table.shapes))
    place = dice.randrange(len(table.chunks[key])) if table.chunks[key] else 0
    match dice.randrange(9):
        case 0:
            table.shapes[key] = _change_axis(table.shapes[key], dice)
        case 1 | 2 | 3 if table.chunks[key]:
            offsets, sizes, item = table.chunks[key][place]
            if dice.random() < 0.4:
                offsets = _change_axis(offsets, dice)
            elif dice.random() < 0.5:
                sizes = _change_axis(sizes, dice)
            elif item is not None:
                field = dice.choice(["begin", "length", "file"])
                value = dice.choice(FILES) if field == "file" else _other(getattr(item, field), dice)
                item = msgspec.structs.replace(item, **{field: value})
            table.chunks[key][place] = (offsets, sizes, item)
        case 4:
            new = dice.choice([*NAMES, key + "x", key.replace("0", "1"), key.replace("layers", "layer")])
            for part in (table.dtypes, table.shapes, table.chunks):
                part[new] = part.pop(key)  # type: ignore[attr-defined]
        case 5:
            most = 500 if len(table.chunks[key]) < 500 else 1  # more take the writer longer than the reader
            table.chunks[key] = table.chunks[key] * dice.choice([0, 0, 2, 2, 2, 2, min(most, 20), most])
        case 6:
            table.dtypes[key] = dice.choice(sorted(dcp.NAMES))
        case 7 if table.objects:
            name = dice.choice(sorted(table.objects))
            item = table.objects[name]
            if item is not None:
                field = dice.choice(["begin", "length"])
                table.objects[name] = msgspec.structs.replace(item, **{field: _other(getattr(item, field), dice)})
        case _:
            for part in (table.dtypes, table.shapes, table.chunks):
                del part[key]  # type: ignore[attr-defined]


@cache
def _read_table(raw: bytes, scratch: Path) -> dcp.Table:
    scratch.write_bytes(raw)
    return dcp.read_table(scratch)


def check_table(seed: int, folder: Path) -> None:
    """Change the table of contents of a run, and run every rule on it; at times its other files too."""
    dice = random.Random(seed)
    sound = MEGATRON / dice.choice(TABLES)
    run = copy_flat(sound, folder / "run")
    path = next(run.rglob(".metadata"))
    known = _read_table(path.read_bytes(), folder / "table")
    table = dcp.Table(
        dict(known.dtypes),
        dict(known.shapes),
        {key: list(chunks) for key, chunks in known.chunks.items()},
        dict(known.objects),
    )
    for _ in range(dice.choice([1, 1, 2, 5])):
        if table.shapes:
            change_table(table, dice)
    with suppress(AttributeError, TypeError, ValueError, UnicodeError, OverflowError):  # what the factory cannot write
        dcp.write_metadata(path, table)
    if dice.random() < 0.2:
        path.write_bytes(damaged(path.read_bytes(), dice))
    _change_others(run, dice, 0.2)
    _read(run, sound, dice)


def check_legacy(seed: int, folder: Path) -> None:
    """Change the files of legacy ranks, their folders and the tracker, and run every rule on them."""
    dice = random.Random(seed)
    sound = MEGATRON / dice.choice(LEGACY)
    run = copy_flat(sound, folder / "run")
    _change_others(run, dice, 0.8)
    ranks = sorted(run.rglob("mp_rank_*"))
    if dice.random() < 0.3:
        rank = dice.choice(ranks)
        rank.rename(
            rank.with_name(dice.choice(["mp_rank_99999999", "mp_rank_", "mp_rank_77_999_123", "mp_rank_00_000_000_0"]))
        )
    _read(run, sound, dice)


def _change_others(run: Path, dice: random.Random, share: float) -> None:
    """Damage trackers, archives and pieces of data."""
    for file in sorted(run.rglob("*")):
        if not file.is_file() or file.name == ".metadata" or dice.random() > share:
            continue
        raw = file.read_bytes()
        match dice.randrange(4):
            case 0 if file.suffix == ".pt":
                raw = write_archive({"data.pkl": random_pickle(dice), "data/0": bytes(64), "byteorder": b"little"})
            case 1 if b"data.pkl" in raw:
                raw = change_archive(raw, dice)
            case _:
                raw = damaged(raw, dice)
        file.write_bytes(raw)


def change_archive(raw: bytes, dice: random.Random) -> bytes:
    """Change what the pickle of a torch.save file says of its tensors, or the storages that they lie in."""
    if dice.random() < 0.5:
        return change_pickle(raw, dice)
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            records = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError):
        return damaged(raw, dice)
    storages = [name for name in records if name.startswith("data/")]
    for _ in range(dice.choice([1, 1, 3])) if storages else ():
        name, other = dice.choice(storages), dice.choice(storages)
        some = dice.choice([1, 2, 4, 8, 64])
        match dice.randrange(4):
            case 0:
                records[name] = records[name][:-some]
            case 1:
                records[name] += dice.randbytes(some)
            case 2:
                records[name], records[other] = records[other], records[name]
            case _:
                records[name] = b""
    return write_archive(records)


def change_pickle(raw: bytes, dice: random.Random) -> bytes:
    """Change numbers inside an archive without moving anything: what stands in the pickle, and lies of the directory."""
    changed = bytearray(raw)
    for _ in range(dice.choice([1, 2, 8])):
        at = dice.randrange(len(raw))
        if dice.random() < 0.7:
            at = raw.find(
                dice.choice(
                    [b"K", b"M", b"J", b"PK\x01\x02", b"PK\x03\x04", b"X", b"q", b"tR", b"PK\x05\x06", b"PK\x06\x06"]
                ),
                at,
            )
        if at >= 0:
            some = dice.choice([dice.randbytes(1), b"\xff" * 4, bytes(4), b"\xff\xff\xff\x7f", b"\x80"])
            at += dice.choice([0, 1, 2, 4, 16, 20, 24, 28, 42])
            changed[at : at + len(some)] = some
    return bytes(changed)


def _read(run: Path, sound: Path, dice: random.Random) -> None:
    """Run every rule, those on values included, and compare, describe or identify what the files hold."""
    with suppress(CkptcheckError), warnings.catch_warnings():
        warnings.simplefilter("error")
        require_no_crash(
            open_target(str(run), jobs=1, value_reader=ValuePass(jobs=1)), "megatron", "dcp", "values", "layers"
        )
        calls: list[Callable[[], object]] = [
            lambda: ckptcheck.diff(sound, run, jobs=1),
            lambda: ckptcheck.manifest(run, run.parent / "m.json", jobs=1),
            lambda: ckptcheck.identity(run, jobs=1),
        ]
        result = dice.choice(calls)()
        if isinstance(result, Report):
            assert not [why for _, why in result.crashed if ".py, line" in why], result.crashed
