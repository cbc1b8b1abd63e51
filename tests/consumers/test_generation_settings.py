"""Sampling settings of generation_config.json against transformers itself."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from ckptcheck.consumers.generation_settings import TRANSFORMERS, list_refused_at_request
from tests.conftest import needs

VALUES: dict[str, tuple[Any, ...]] = {
    "repetition_penalty": (None, 1, 1.0, 1.05, 2, 0.0, -0.5, "1.05"),
    "temperature": (None, 1, 0.6, 2.5, 0.0, 0, -1.0, "0.7"),
    "top_k": (None, 0, 20, -1, -2, 0.5),
    "top_p": (None, 0.95, 1, -0.5, 2.0),
    "min_p": (None, 0.0, 0.05, 1.5, -0.1),
    "num_beams": (1, 2, 0),
}
TRIED = [
    {key: value, "do_sample": samples}
    for key, values in VALUES.items()
    for value in values
    for samples in (False, True)
]


@cache
def build_model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=8, pad_token_id=0, bos_token_id=1, eos_token_id=2, **sizes)).eval()


@pytest.mark.parametrize("settings", TRIED, ids=json.dumps)
def test_what_transformers_refuses(settings: dict[str, Any]) -> None:
    needs("torch", "transformers")
    import torch

    try:
        build_model().generate(torch.tensor([[1, 3]]), max_new_tokens=2, **settings)
        is_refused = False
    except Exception:  # any refusal is an answer
        is_refused = True
    told = [harm for _, _, harm in list_refused_at_request(settings)]
    assert any(harm.startswith(TRANSFORMERS.partition(" ")[0]) for harm in told) == is_refused, told
