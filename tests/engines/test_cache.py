"""How large a cache of keys and values is made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.engines.cache import BLOCK, LEAST, MOST, room

SMOL = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576, "num_hidden_layers": 30}
TOKEN = 2 * 30 * 3 * 64 * 4
"""Bytes of a token of SmolLM2-135M in float32."""


def written(folder: Path, config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_long_sequence_has_room_and_many_short_ones_have(tmp_path: Path) -> None:
    place = written(tmp_path, SMOL)
    assert room(place, 100, 8) == (BLOCK * 9, LEAST)
    assert room(place, 8192) == (2 * 8192, 2 * 8192 * TOKEN)
    assert room(place, 1000, 32) == (33 * 1024, 33 * 1024 * TOKEN)
    assert room(place, 1000, 32, "bfloat16")[1] == 33 * 1024 * TOKEN // 2
    tokens, size = room(place, 8192, 32)
    assert tokens == MOST // TOKEN
    assert MOST - TOKEN < size <= MOST


def test_one_sequence_that_needs_more_than_the_most_gets_it(tmp_path: Path) -> None:
    place = written(tmp_path, {"text_config": {**SMOL, "num_hidden_layers": 3000, "head_dim": 128}})
    tokens, size = room(place, 8192, 8)
    assert tokens == 2 * 8192
    assert size > MOST


@pytest.mark.parametrize(
    "config",
    [{}, [], {**SMOL, "num_attention_heads": 0}, {**SMOL, "num_hidden_layers": "30"}, {**SMOL, "hidden_size": None}],
)
def test_what_config_json_does_not_tell_is_the_least(tmp_path: Path, config: Any) -> None:
    assert room(written(tmp_path, config), 100, 3) == (4 * BLOCK, LEAST)
    assert room(tmp_path / "none", 100) == (2 * BLOCK, LEAST)
