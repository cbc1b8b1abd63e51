"""How many tokens an engine is started for."""

from __future__ import annotations

import json
from pathlib import Path

USUAL = 512
"""Tokens of the longest sequence, where a check asks for no other: two blocks of a prefix cache, and what is decoded."""
POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
)
"""Of config.json. An engine that is asked for more than the smallest says does not start (vLLM, ModelArchConfigConvertor;
SGLang, CONTEXT_LENGTH_KEYS)."""


def usual(checkpoint: Path) -> int:
    """Return the tokens of the longest sequence for a model: `USUAL`, or what config.json has room for where that is less."""
    try:
        config = json.loads((checkpoint / "config.json").read_bytes())
        config = config.get("text_config") or config
        told = [config.get(name) for name in POSITIONS]
    except (OSError, ValueError, AttributeError, RecursionError):
        told = []
    return min([USUAL, *(each for each in told if type(each) is int and each > 0)])
