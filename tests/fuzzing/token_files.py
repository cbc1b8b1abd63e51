"""The door of SentencePiece models, each beside a model."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

from ckptcheck.checkpoint.open import open_checkpoint
from tests.fuzz import CHECKPOINTS, damaged
from tests.fuzzing.batches import copy_flat
from tests.fuzzing.documents import RULE_KINDS, require_no_crash

LONG_VARINTS = (b"\xff" * 9 + b"\x01", b"\xff" * 20, b"\x80" * 10 + b"\x00", b"\xff\xff\xff\xff\x0f")
"""Lengths without end, and ones that a file does not have."""


@cache
def _write_sentencepiece() -> bytes:
    """Return a model of 64 pieces: texts, scores and types, and after them the settings of its trainer."""
    texts = ["<unk>", "<s>", "</s>", *(f"▁word{number}" for number in range(60)), "x" * 200]
    pieces = b""
    for place, text in enumerate(texts):
        raw = text.encode()
        body = b"\x0a" + _write_varint(len(raw)) + raw + b"\x15" + bytes(4) + (b"\x18\x03" if place < 3 else b"")
        pieces += b"\x0a" + _write_varint(len(body)) + body
    return pieces + b"\x12\x04\x1a\x02ab" + b"\x1a\x02\x0a\x00"


def _write_varint(number: int) -> bytes:
    written = b""
    while number > 0x7F:
        written += bytes((number & 0x7F | 0x80,))
        number >>= 7
    return written + bytes((number,))


def _change_bytes(raw: bytes, dice: random.Random) -> bytes:
    """Change some bytes, at times a length of a message."""
    for _ in range(dice.choice([1, 1, 2, 5])):
        if dice.random() < 0.3:
            place = dice.randrange(len(raw) + 1)
            raw = raw[:place] + dice.choice(LONG_VARINTS) + raw[place + dice.choice([0, 1, 2]) :]
        else:
            raw = damaged(raw, dice)
    return raw * dice.choice([1] * 9 + [300])


FILES: dict[str, tuple[Callable[[], bytes], Callable[[bytes, random.Random], bytes]]] = {
    "tokenizer.model": (_write_sentencepiece, _change_bytes),
    "sentencepiece.bpe.model": (_write_sentencepiece, _change_bytes),
}
"""Name of a file → its sound content, and what changes it."""


def check_token_files(seed: int, folder: Path) -> None:
    """Change the tokenizer of a model, and run every rule of its tokenizer and configs. Raises AssertionError where one crashes."""
    dice = random.Random(seed)
    path = copy_flat(CHECKPOINTS / "tiny-llama", folder / "model")
    for name in dice.sample(sorted(FILES), dice.choice([1, 1, 1, 2])):
        write, change = FILES[name]
        (path / name).write_bytes(change(write(), dice))
    require_no_crash(open_checkpoint(str(path), jobs=1), *RULE_KINDS)
