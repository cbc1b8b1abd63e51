"""Classes that read types of rotary embeddings in a way of their own, held against transformers itself."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from ckptcheck.checkpoint.resolved_config import resolve_config
from ckptcheck.checkpoint.rope_refusals import iter_wrong_rope
from tests.conftest import needs

TOWERS = ("glm4v", "qwen2_5_vl", "qwen3_vl")


def find_faults(model_type: str, rope: dict[str, Any]) -> list[str]:
    resolved = resolve_config({"model_type": model_type, "vision_config": {"rope_parameters": rope}})
    assert resolved is not None
    return [fault for part in resolved.parts for _, fault in iter_wrong_rope(part)]


@pytest.mark.parametrize("model_type", TOWERS)
@pytest.mark.parametrize("kind", ["linear", "dynamic"])
def test_a_tower_that_computes_one_type_refuses_others(model_type: str, kind: str) -> None:
    rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0}
    assert find_faults(model_type, rope) == [
        f'vision_config.rope_parameters has the type "{kind}", and transformers computes only "axial" there'
    ]


@pytest.mark.parametrize("model_type", TOWERS)
@pytest.mark.parametrize("kind", ["axial", "default"])
def test_its_own_type_and_the_default_are_sound(model_type: str, kind: str) -> None:
    assert find_faults(model_type, {"rope_type": kind, "rope_theta": 10000.0}) == []


@pytest.mark.parametrize("kind", ["yarn", "su"])
def test_a_type_that_is_read_as_another_needs_the_keys_of_that(kind: str) -> None:
    rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 4096}
    resolved = resolve_config({"model_type": "phi3", "rope_parameters": rope})
    assert resolved is not None
    assert [fault for _, fault in iter_wrong_rope(resolved.top)] == [
        f'rope_parameters has the type "{kind}", which Phi3Config reads as "longrope", but not long_factor and short_factor'
    ]
    factors = {"short_factor": [1.0] * 48, "long_factor": [1.0] * 48}
    resolved = resolve_config({"model_type": "phi3", "rope_parameters": rope | factors})
    assert resolved is not None
    assert list(iter_wrong_rope(resolved.top)) == []


@pytest.mark.zoo
@pytest.mark.parametrize("kind", ["linear", "default"])
@pytest.mark.parametrize("model_type", TOWERS)
def test_transformers_refuses_what_is_a_fault(model_type: str, kind: str) -> None:
    needs("torch", "transformers")
    import torch
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0}
    config = CONFIG_MAPPING[model_type](vision_config={"rope_parameters": rope})
    faults = find_faults(model_type, rope)
    refused = pytest.raises(ValueError, match="supports only axial rope") if faults else nullcontext()
    with refused, torch.device("meta"):
        MODEL_MAPPING[type(config)](config)
