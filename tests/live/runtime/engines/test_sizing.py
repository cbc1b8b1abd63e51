"""The context length and the KV cache that an engine starts with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.live.runtime.engines.sizing import BLOCK, MAX_CACHE_BYTES, MIN_CACHE_BYTES, kv_cache_size

SMOL = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576, "num_hidden_layers": 30}
TOKEN_BYTES = 2 * 30 * 3 * 64 * 4
"""Bytes of a token of SmolLM2-135M in float32."""


def write_config(folder: Path, config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_cache_fits_one_long_sequence_and_many_short_ones(tmp_path: Path) -> None:
    checkpoint = write_config(tmp_path, SMOL)
    assert kv_cache_size(checkpoint, 100, 8) == (BLOCK * 9, MIN_CACHE_BYTES)
    assert kv_cache_size(checkpoint, 8192) == (2 * 8192, 2 * 8192 * TOKEN_BYTES)
    assert kv_cache_size(checkpoint, 1000, 32) == (33 * 1024, 33 * 1024 * TOKEN_BYTES)
    assert kv_cache_size(checkpoint, 1000, 32, "bfloat16")[1] == 33 * 1024 * TOKEN_BYTES // 2
    tokens, size = kv_cache_size(checkpoint, 8192, 32)
    assert tokens == MAX_CACHE_BYTES // TOKEN_BYTES
    assert MAX_CACHE_BYTES - TOKEN_BYTES < size <= MAX_CACHE_BYTES


def test_one_sequence_larger_than_the_limit_gets_its_cache(tmp_path: Path) -> None:
    checkpoint = write_config(tmp_path, {"text_config": {**SMOL, "num_hidden_layers": 3000, "head_dim": 128}})
    tokens, size = kv_cache_size(checkpoint, 8192, 8)
    assert tokens == 2 * 8192
    assert size > MAX_CACHE_BYTES


@pytest.mark.parametrize(
    "config",
    [{}, [], {**SMOL, "num_attention_heads": 0}, {**SMOL, "num_hidden_layers": "30"}, {**SMOL, "hidden_size": None}],
)
def test_without_a_usable_config_the_cache_has_the_smallest_size(tmp_path: Path, config: Any) -> None:
    assert kv_cache_size(write_config(tmp_path, config), 100, 3) == (4 * BLOCK, MIN_CACHE_BYTES)
    assert kv_cache_size(tmp_path / "none", 100) == (2 * BLOCK, MIN_CACHE_BYTES)
