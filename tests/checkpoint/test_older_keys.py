"""Keys of config.json that are no fields of its class, but that the class reads: the tables say what they decide."""

from __future__ import annotations

import pytest

from ckptcheck.checkpoint.resolved_config import resolve_config


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        ({"model_type": "bloom", "n_embed": 1024}, "hidden_size", 1024),
        ({"model_type": "bloom", "n_embed": 1024, "hidden_size": 64}, "hidden_size", 1024),
        ({"model_type": "bloom", "n_embed": None, "hidden_size": 512}, "hidden_size", 512),
        ({"model_type": "bloom"}, "hidden_size", 64),
        ({"model_type": "lfm2", "block_ff_dim": 6656}, "intermediate_size", 6656),
        ({"model_type": "nemotron_h", "mamba_n_groups": 8}, "n_groups", 8),
        ({"model_type": "inkling2_loop_text"}, "loop_gate_rank", 64),
    ],
)
def test_an_older_key_sets_its_field(config: dict[str, object], field: str, value: object) -> None:
    resolved = resolve_config(config)
    assert resolved is not None
    setting = resolved.top.find(field)
    assert setting is not None
    assert setting.value == value


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"model_type": "inkling2_loop_text", "loop_config": {"gate_rank": 32}}, "loop_gate_rank"),
        ({"model_type": "kimi_linear", "linear_attn_config": {"head_dim": 256}}, "linear_head_dim"),
    ],
)
def test_a_default_says_nothing_beside_a_key_that_may_decide_the_field(config: dict[str, object], field: str) -> None:
    resolved = resolve_config(config)
    assert resolved is not None
    assert resolved.top.find(field) is None
