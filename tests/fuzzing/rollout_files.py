"""The door of frameworks' own batches: archives and pickles of torch and numpy, parquet files, columns of safetensors.

The files are those that the frameworks wrote (tests/data/rollouts); a seed changes numbers inside them, or damages them.
"""

from __future__ import annotations

import json
import random
from contextlib import suppress
from functools import cache
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.rollouts import read_rollouts, write_rollouts
from ckptcheck.rollouts.convert import convert
from tests.fuzz import damaged, draft, mutate, written
from tests.fuzzing.documents import ROLLOUTS, measure
from tests.fuzzing.megatron import change_pickle


@cache
def _files() -> dict[str, bytes]:
    found = [file for file in ROLLOUTS.iterdir() if file.suffix in (".pt", ".pkl", ".parquet")]
    return {file.name: file.read_bytes() for file in found}


@cache
def _columns(folder: Path) -> bytes:
    path = folder / "r.safetensors"
    write_rollouts(read_rollouts(ROLLOUTS / "answers" / "vllm-recorded.jsonl"), path)
    return path.read_bytes()


def check_batch(seed: int, folder: Path) -> None:
    """Change a file of rollouts and read it; what is refused with a sentence is well."""
    dice = random.Random(seed)
    if dice.random() < 0.3:
        raw, path = _columns(folder), folder / "columns.safetensors"
        length = int.from_bytes(raw[:8], "little")
        node = draft(json.loads(raw[8 : 8 + length]))
        for _ in range(dice.choice([1, 1, 2, 4])):
            mutate(node, dice)
        body = written(node).encode("utf-8", "surrogatepass")
        data = raw[8 + length :] if dice.random() < 0.6 else _change_numbers(raw[8 + length :], dice)
        path.write_bytes(len(body).to_bytes(8, "little") + body + data)
        with suppress(CkptcheckError):
            measure(path)
        return
    name, raw = dice.choice(sorted(_files().items()))
    path = folder / name
    path.write_bytes(change_pickle(raw, dice) if dice.random() < 0.7 else damaged(raw, dice))
    with suppress(CkptcheckError):
        convert([path])


def _change_numbers(raw: bytes, dice: random.Random) -> bytes:
    changed = bytearray(raw)
    for _ in range(dice.choice([1, 5, 50])):
        at = dice.randrange(len(raw))
        some = dice.choice([b"\xff" * 8, bytes(8), b"\xff" * 7 + b"\x7f", b"\0\0\xc0\x7f", dice.randbytes(4)])
        changed[at : at + len(some)] = some
    return bytes(changed[: len(raw)])
