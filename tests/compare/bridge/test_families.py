"""The table of families against transformers itself: every family built with its flags on and off."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.decoder_families import FAMILIES, attention_shapes, expects_biases, expert_shapes, mlp_shapes
from tests.conftest import needs

pytestmark = pytest.mark.zoo
PARTS = ("q_proj", "k_proj", "v_proj", "o_proj")


def built(model_type: str, changes: dict[str, Any]) -> tuple[Config, dict[str, tuple[int, ...]]]:
    """Build a tiny model without memory; return its config as saved and the shapes inside its last layer."""
    import torch
    import zoo
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    config_class = CONFIG_MAPPING[model_type]
    fields = zoo.tiny_fields(config_class)
    config = config_class(**zoo.merge(fields, changes))
    with torch.device("meta"):
        model = MODEL_FOR_CAUSAL_LM_MAPPING[config_class](config)
    saved = json.loads(config.to_json_string(use_diff=True))
    stack = f"model.layers.{config.num_hidden_layers - 1}."
    shapes = {
        name.removeprefix(stack): tuple(value.shape)
        for name, value in model.state_dict().items()
        if name.startswith(stack)
    }
    return Config("config.json", saved, readable=True), shapes


def _cases() -> list[tuple[str, dict[str, Any]]]:
    flags = {name: {family.bias_flag} - {None} for name, family in FAMILIES.items()}
    return [(name, {flag: value}) for name in FAMILIES for flag in flags[name] or {""} for value in (True, False)]


@pytest.mark.parametrize(("model_type", "changes"), _cases(), ids=str)
def test_biases_and_shapes_are_those_that_transformers_builds(model_type: str, changes: dict[str, Any]) -> None:
    needs("torch", "transformers")
    changes.pop("", None)
    config, shapes = built(model_type, changes)
    family = FAMILIES[model_type]
    expected = {part for part in family.biased if expects_biases(family, config)}
    assert {part for part in PARTS if f"self_attn.{part}.bias" in shapes} == expected
    compared = 0
    for name, shape in (attention_shapes(config) | mlp_shapes(config)).items():
        if name in shapes:
            assert shapes[name] == shape, name
            compared += 1
    assert compared >= 4
    assert {name: shapes[name] for name in expert_shapes(config) if name in shapes} == {
        name: shape for name, shape in expert_shapes(config).items() if name in shapes
    }


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_the_default_of_a_flag_is_that_of_transformers(model_type: str) -> None:
    needs("torch", "transformers")
    config, shapes = built(model_type, {})
    family = FAMILIES[model_type]
    if family.bias_flag:
        config.value.pop(family.bias_flag, None)
    assert expects_biases(family, config) == any(f"self_attn.{part}.bias" in shapes for part in PARTS)


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_what_a_config_leaves_out_is_what_transformers_takes(model_type: str) -> None:
    """Old and hand-written configs do not name head_dim or the key-value heads: the class's defaults hold then."""
    needs("torch", "transformers")
    from transformers import CONFIG_MAPPING

    built_config = CONFIG_MAPPING[model_type](hidden_size=96, num_attention_heads=6)
    ours = Config("config.json", {"model_type": model_type, "hidden_size": 96, "num_attention_heads": 6}, readable=True)
    shapes = attention_shapes(ours)
    head_dim = getattr(built_config, "head_dim", None) or 96 // 6
    groups = getattr(built_config, "num_key_value_heads", None) or 6
    assert shapes["self_attn.k_proj.weight"] == (groups * head_dim, 96)
    assert shapes["self_attn.q_proj.weight"] == (6 * head_dim * (1 + FAMILIES[model_type].gated), 96)
