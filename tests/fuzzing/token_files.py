"""The door of tokenizers that are not tokenizer.json: SentencePiece, tiktoken and tekken, each beside a model."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from ckptcheck.checkpoint.open import open_checkpoint
from tests.fuzz import CHECKPOINTS, damaged
from tests.fuzzing.batches import copy_flat
from tests.fuzzing.documents import RULE_KINDS, require_no_crash
from tests.fuzzing.kept_files import change_form

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


@cache
def _write_tiktoken() -> bytes:
    tokens = [*(bytes((byte,)) for byte in range(256)), b"th", b"he", "é".encode(), b"\xff\xfe"]
    return b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens))


@cache
def _write_tekken() -> bytes:
    tokens = [*(bytes((byte,)) for byte in range(256)), b"th", b"he"]
    vocabulary = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate(tokens)
    ]
    config: dict[str, Any] = {
        "pattern": ".", "num_vocab_tokens": 258, "default_vocab_size": 268, "default_num_special_tokens": 10, "version": "v3",
    }  # fmt: skip
    special = [{"rank": 0, "token_str": "<unk>", "is_control": True}]
    return json.dumps({"config": config, "vocab": vocabulary, "special_tokens": special}).encode()


def _change_bytes(raw: bytes, dice: random.Random) -> bytes:
    """Change some bytes, at times a length of a message."""
    for _ in range(dice.choice([1, 1, 2, 5])):
        if dice.random() < 0.3:
            place = dice.randrange(len(raw) + 1)
            raw = raw[:place] + dice.choice(LONG_VARINTS) + raw[place + dice.choice([0, 1, 2]) :]
        else:
            raw = damaged(raw, dice)
    return raw * dice.choice([1] * 9 + [300])


def _change_lines(raw: bytes, dice: random.Random) -> bytes:
    """Change lines of a token and its rank, or their order."""
    lines = raw.split(b"\n")
    for _ in range(dice.choice([1, 1, 3])):
        place = dice.randrange(len(lines))
        token, _, rank = lines[place].partition(b" ")
        lines[place] = dice.choice([
            b"", token, rank, token + b" -1", token + b" " + b"9" * dice.choice([9, 12, 13, 5000]), b"= 5", b"\xff\xfe 5",
            token + b"= " + rank, lines[place] * 2, lines[dice.randrange(len(lines))], token + b"\t" + rank + b" 1", b" ",
            "é ٣".encode(), b"A" * 60_000 + b" 7", damaged(lines[place], dice),
        ])  # fmt: skip
    if dice.random() < 0.1:
        dice.shuffle(lines)
    return dice.choice([b"\n"] * 6 + [b"\r\n", b"\r", b"\n\n"]).join(lines)


def _change_tekken(raw: bytes, dice: random.Random) -> bytes:
    """Change a document, or its counts, which have to agree with each other."""
    if dice.random() > 0.2:
        return change_form(raw, dice)
    form = json.loads(raw)
    number = dice.choice([1, -1, 10, 1 << 20, 10**9, 10**12, 10**30])
    for key in ("default_vocab_size", "default_num_special_tokens"):
        form["config"][key] += number
    return json.dumps(form).encode()


FILES: dict[str, tuple[Callable[[], bytes], Callable[[bytes, random.Random], bytes]]] = {
    "tokenizer.model": (_write_sentencepiece, _change_bytes),
    "sentencepiece.bpe.model": (_write_sentencepiece, _change_bytes),
    "tiktoken.model": (_write_tiktoken, _change_lines),
    "qwen.tiktoken": (_write_tiktoken, _change_lines),
    "tekken.json": (_write_tekken, _change_tekken),
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
