"""Reads what the real megatron-core writes, in every layout."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.tensor_reader import ChunkLocation
from ckptcheck.live.runtime.environments.store import engines_folder
from tests.checkpoint.megatron.test_megatron import findings, megatron
from tests.factories.checkpoint_cases import MEGATRON
from tests.paths import ROOT
from tests.test_rules import open_with_values

ENVIRONMENT = engines_folder() / "megatron/bin/python"


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not ENVIRONMENT.is_file():
        pytest.skip(f"the megatron environment is not installed ({ENVIRONMENT} does not exist)")
    out = tmp_path_factory.mktemp("megatron")
    script = ROOT / "fixtures/write_megatron.py"
    done = subprocess.run([str(ENVIRONMENT), str(script), str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def expected(config: dict[str, Any], tensors: dict[str, np.ndarray], name: str) -> np.ndarray:
    """The weight that Megatron calls so, from the Hugging Face checkpoint; an arrangement of its own, by numpy."""
    rows = np.zeros((4, config["hidden_size"]), "f4")
    if name.startswith("embedding") or (name.startswith("output") and config["tie_word_embeddings"]):
        return np.concatenate([tensors["model.embed_tokens.weight"], rows])
    if name.startswith("output"):
        return np.concatenate([tensors["lm_head.weight"], rows])
    if name == "decoder.final_layernorm.weight":
        return tensors["model.norm.weight"]
    _, _, layer, rest = name.split(".", 3)
    prefix = f"model.layers.{layer}."
    simple = {
        "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
        "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
        "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
        "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
        "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight",
        "input_layernorm.weight": "input_layernorm.weight",
        "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
        "mlp.linear_fc2.weight": "mlp.down_proj.weight",
        "mlp.router.weight": "mlp.gate.weight",
    }
    if rest in simple:
        return tensors[prefix + simple[rest]]
    if rest == "self_attention.linear_qkv.weight":
        q, k, v = (tensors[f"{prefix}self_attn.{part}_proj.weight"] for part in "qkv")
        size, groups = config["head_dim"], config["num_key_value_heads"]
        each = [w.reshape(groups, -1, size, w.shape[1]) for w in (q, k, v)]
        return np.concatenate(each, axis=1).reshape(-1, q.shape[1])
    block = "mlp" if "experts" not in rest else f"mlp.experts.{rest.split('local_experts.')[1].split('.')[0]}"
    if rest.endswith("linear_fc1.weight"):
        return np.concatenate([tensors[f"{prefix}{block}.{part}_proj.weight"] for part in ("gate", "up")])
    return tensors[f"{prefix}{block}.down_proj.weight"]


@pytest.mark.engine
def test_all_layouts_of_the_real_megatron_hold_the_model_they_were_made_from(written: Path) -> None:
    looked = 0
    for folder in sorted(path for path in written.iterdir() if not path.name.endswith("-hf")):
        reference = folder.with_name(folder.name + "-hf")
        config = json.loads((reference / "config.json").read_text(encoding="utf-8"))
        assert findings(folder) == [], folder.name
        if config["dtype"] == "bfloat16" or folder.name == "plain-dcp":
            continue
        tensors, found = load_file(reference / "model.safetensors"), megatron(folder)
        layers = config["num_hidden_layers"]
        assert set(found.structure.layers) == set(range(layers)), folder.name
        for name in found.weights:
            if not name.startswith("value_head"):
                assert np.array_equal(found.read(name), expected(config, tensors, name)), (folder.name, name)
                looked += 1
        assert found.weights.keys() >= {"embedding.word_embeddings.weight", "decoder.final_layernorm.weight"}
        assert ("value_head.weight" in found.weights) == folder.name.startswith("critic")
    assert looked > 400


@pytest.mark.engine
def test_bf16_is_read_as_patterns(written: Path) -> None:
    found = megatron(written / "dense-bf16")
    raw = (written / "dense-bf16-hf/model.safetensors").read_bytes()
    assert found.weights["output_layer.weight"].dtype == "BF16"
    value = found.read("output_layer.weight", [slice(0, 60)])
    assert value.dtype == np.uint16
    assert value.tobytes() in raw


def test_located_is_where_the_bytes_lie() -> None:
    found = open_with_values(MEGATRON / "dense")
    assert isinstance(found, Megatron)
    [(chunk, place)] = found.inspection.located["output_layer.weight"]
    assert isinstance(place, ChunkLocation)
    raw = (MEGATRON / "dense" / place.name).read_bytes()[place.begin : place.begin + place.nbytes]
    assert raw == found.read("output_layer.weight").tobytes()
    assert chunk.sizes == (64, 16)
