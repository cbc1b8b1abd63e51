"""Sizes of an engine: the context length it starts with, and the KV cache for the sequences that run at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ckptcheck.text.file_io import read_json_file

DEFAULT_CONTEXT_LEN = 512
"""Tokens of the longest sequence unless a check needs more: two blocks of a prefix cache and the decoded tokens."""
SPARE_TOKENS = 2
"""Tokens of context beyond the longest sequence of rollouts, which SGLang keeps to itself (see PRB001)."""
CONTEXT_LEN_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
)
"""Keys of config.json. An engine refuses to start with more tokens than the smallest of them allows (vLLM,
ModelArchConfigConvertor; SGLang, CONTEXT_LENGTH_KEYS)."""
MIN_CACHE_BYTES = 256 << 20
"""The smallest cache an engine gets."""
MAX_CACHE_BYTES = 4 << 30
"""Beyond this size sequences wait for each other, unless a single one needs more."""
BLOCK = 128
"""Tokens to which a sequence is rounded up: vLLM's block size on CPUs; other block sizes are smaller."""
DTYPE_BYTES = {"float16": 2, "bfloat16": 2}


def default_context_len(checkpoint: Path) -> int:
    """Return `DEFAULT_CONTEXT_LEN`, or the context length in config.json if that is smaller."""
    try:
        config = read_json_file(checkpoint / "config.json")
        config = config.get("text_config") or config
        lengths = [config.get(key) for key in CONTEXT_LEN_KEYS]
    except (OSError, ValueError, AttributeError):
        lengths = []
    return min([DEFAULT_CONTEXT_LEN, *(length for length in lengths if type(length) is int and length > 0)])


def kv_cache_size(
    checkpoint: Path, context_len: int, concurrent_sequences: int = 1, dtype: str = "float32"
) -> tuple[int, int]:
    """Return the tokens and bytes of a KV cache for so many sequences of `context_len` tokens, up to `MAX_CACHE_BYTES`.

    Every layer keeps a key and a value of head_dim numbers for each KV head. A model that keeps them in fewer layers (sliding
    windows, linear attention) or compressed (MLA) needs less. If config.json does not say, the bytes are
    `MIN_CACHE_BYTES` and the tokens the sum over all sequences.
    """
    sequence = -(-context_len // BLOCK) * BLOCK
    token_bytes = _bytes_per_token(checkpoint, dtype)
    # one more than asked for, because vLLM keeps one block to itself
    required = sequence * (concurrent_sequences + 1)
    if not token_bytes:
        return required, MIN_CACHE_BYTES
    tokens = max(2 * sequence, min(required, MAX_CACHE_BYTES // token_bytes))
    return tokens, max(MIN_CACHE_BYTES, tokens * token_bytes)


def _bytes_per_token(checkpoint: Path, dtype: str) -> int:
    """Return the bytes that one token takes in the cache; 0 if config.json does not say."""
    try:
        config = read_json_file(checkpoint / "config.json")
        config = config.get("text_config") or config
        heads = config["num_attention_heads"]
        head_dim = config.get("head_dim") or config["hidden_size"] // heads
        kv_heads = config.get("num_key_value_heads") or heads
        numbers = _positive(config["num_hidden_layers"]) * _positive(kv_heads) * _positive(head_dim)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return 0
    return 2 * numbers * DTYPE_BYTES.get(dtype, 4)


def _positive(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError
    return value
