"""The shapes and biases of the common decoder families against transformers itself: each is built with its flags on and off."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.decoder_families import FAMILIES
from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.checkpoint.weights_table import WeightsTable
from tests.conftest import needs

pytestmark = pytest.mark.zoo
FLAGS = ("attention_bias", "mlp_bias", "qkv_bias", "use_bias")


def build(model_type: str, changes: dict[str, Any]) -> tuple[Config, dict[str, tuple[int, ...]]]:
    """Build a tiny model without memory; return its config as saved, and the shapes of its tensors as saved."""
    import torch
    import zoo
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING
    from transformers.core_model_loading import revert_weight_conversion

    config_class = CONFIG_MAPPING[model_type]
    config = config_class(**zoo.merge(zoo.tiny_fields(config_class), changes))
    with torch.device("meta"):
        model = MODEL_FOR_CAUSAL_LM_MAPPING[config_class](config)
    saved = json.loads(config.to_json_string(use_diff=True)) | {"architectures": [type(model).__name__]}
    stored = revert_weight_conversion(model, dict(model.state_dict()))
    return Config("config.json", saved, readable=True), {name: tuple(value.shape) for name, value in stored.items()}


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_the_table_expects_what_transformers_builds(model_type: str, is_on: bool) -> None:
    needs("torch", "transformers")
    from transformers import CONFIG_MAPPING

    fields = CONFIG_MAPPING[model_type]().to_dict()
    config, shapes = build(model_type, {flag: is_on for flag in FLAGS if flag in fields})
    table, resolved = WeightsTable.of_layers(config), config.resolved
    assert table is not None
    assert resolved is not None

    def size_of(field: str) -> int | None:
        setting = resolved.at(field)
        return setting.value if setting is not None and type(setting.value) is int else None

    compared = 0
    for name, shape in shapes.items():
        expected = table.expect_shape(name, size_of, shape)
        if expected is not None:
            assert all(one is None or one == two for one, two in zip(expected, shape, strict=True)), name
            compared += 1
    assert compared >= 8
    switched = {pattern for switch in table.switches for pattern in (*switch.on, *switch.off)}
    biases = {INDEX.sub("{}", name) for name in shapes if ".self_attn." in name and name.endswith(".bias")}
    assert biases <= table.required | switched
