"""How large a cache of keys and values has to be for sequences that are computed at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LEAST = 256 << 20
"""Bytes that are given in any case."""
MOST = 4 << 30
"""Bytes beyond which sequences wait for each other, unless a single one needs more."""
BLOCK = 128
"""Tokens to which a sequence is rounded up: vLLM's block on CPUs; others have smaller ones."""
SIZES = {"float16": 2, "bfloat16": 2}


def room(checkpoint: Path, length: int, together: int = 1, dtype: str = "float32") -> tuple[int, int]:
    """Return tokens and bytes of a cache for `together` sequences of `length` tokens each, as far as `MOST` goes.

    Every layer keeps a key and a value of head_dim numbers for each head of keys and values. What does so for fewer layers
    (sliding windows, linear attention) or in a compressed form (MLA) needs less. Where config.json does not tell, bytes
    are `LEAST`, and tokens those of a few sequences.
    """
    each = -(-length // BLOCK) * BLOCK
    token = _token(checkpoint, dtype)
    wanted = each * (together + 1)  # vLLM keeps a block to itself
    if not token:
        return wanted, LEAST
    tokens = max(2 * each, min(wanted, MOST // token))
    return tokens, max(LEAST, tokens * token)


def _token(checkpoint: Path, dtype: str) -> int:
    """Return the bytes of a token; 0 where config.json does not tell."""
    try:
        config = json.loads((checkpoint / "config.json").read_bytes())
        config = config.get("text_config") or config
        heads = config["num_attention_heads"]
        size = config.get("head_dim") or config["hidden_size"] // heads
        numbers = (
            _whole(config["num_hidden_layers"]) * _whole(config.get("num_key_value_heads") or heads) * _whole(size)
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return 0
    return 2 * numbers * SIZES.get(dtype, 4)


def _whole(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError
    return value
