"""Reads the tokens of tekken.json, Mistral's format, as mistral-common does.

Source: mistral-common 1.13, `Tekkenizer` and `_reload_mergeable_ranks` (tokens/tokenizers/tekken.py).
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from ckptcheck.checkpoint.document import Defect, clip, parse_object

COUNTS = ("default_vocab_size", "default_num_special_tokens")
TOKEN_KEYS = {"rank", "token_bytes", "token_str"}
MOST_SPECIAL = 1 << 20
"""Most special tokens that are listed; releases have 14 to 1,000."""


def read_tekken(raw: bytes) -> tuple[dict[int, str], Defect | None]:
    """Return id → token, and the reason why mistral-common refuses the file, or None."""
    value, defects = parse_object(raw)
    if value is None:
        return {}, defects[0]
    config, vocabulary = value.get("config"), value.get("vocab")
    if not isinstance(config, dict) or not isinstance(vocabulary, list):
        lacking, kind = ("config", "object") if not isinstance(config, dict) else ("vocab", "list")
        return {}, Defect("torn", f"it has no {lacking}, or one that is no {kind}", lacking)
    for key in ("pattern", "version"):
        if not isinstance(config.get(key), str):
            return {}, Defect("torn", f"config.{key} is {_write(config.get(key))}, and no text", f"config.{key}")
    for key in COUNTS:
        if type(config.get(key)) is not int or config[key] < 0:
            return {}, Defect(
                "torn", f"config.{key} is {_write(config.get(key))}, and no number of tokens", f"config.{key}"
            )
    rows, special = (config[key] for key in COUNTS)
    if special > MOST_SPECIAL:
        text = f"config.default_num_special_tokens is {_write(special)}: no tokenizer has so many"
        return {}, Defect("torn", text, "config.default_num_special_tokens")
    if not 0 <= rows - special <= len(vocabulary):
        have = f"{special:,} special tokens and {len(vocabulary):,} of vocab"
        text = f"config.default_vocab_size is {_write(rows)}: {have} are not so many"
        return {}, Defect("torn", text, "config.default_vocab_size")
    return _read_tokens(vocabulary[: rows - special], _list_special(value, special), special)


def _list_special(value: dict[str, Any], special: int) -> dict[int, str]:
    listed = value.get("special_tokens")
    names = {
        number: token["token_str"]
        for number, token in enumerate(listed if isinstance(listed, list) else ())
        if isinstance(token, dict) and isinstance(token.get("token_str"), str)
    }
    return {number: names.get(number, f"<SPECIAL_{number}>") for number in range(special)}


def _read_tokens(vocabulary: list[Any], tokens: dict[int, str], special: int) -> tuple[dict[int, str], Defect | None]:
    seen: set[bytes] = set()
    for place, entry in enumerate(vocabulary):
        key = f"vocab.{place}"
        if not isinstance(entry, dict) or entry.keys() != TOKEN_KEYS or entry["rank"] != place:
            return tokens, Defect("torn", f"the entry is not the token of rank {place:,}: {_write(entry)}", key)
        token = _decode(entry["token_bytes"])
        if token is None or token in seen or (place < 256 and token != bytes((place,))):
            why = (
                "no base64" if token is None else "those of another token" if token in seen else "not those of its rank"
            )
            return tokens, Defect("torn", f"token_bytes are {why}: {_write(entry['token_bytes'])}", key)
        seen.add(token)
        tokens[place + special] = token.decode("utf-8", "replace")
    return tokens, None


def _decode(text: object) -> bytes | None:
    try:
        return base64.b64decode(text) if isinstance(text, str) else None
    except (binascii.Error, ValueError):
        return None


def _write(value: object) -> str:
    return clip(json.dumps(value, ensure_ascii=False), 60)
