"""What transformers builds in a layer, and the table that says so."""

from __future__ import annotations

from pathlib import Path

from ckptcheck.checkpoint.layer_blocks import block_of, find_lacking_layers, list_layer_tensors
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.checkpoint.weights_table import WeightsTable, _find
from tests.paths import ROOT

FIXTURES = Path(ROOT) / "fixtures" / "checkpoints"


def test_a_tensor_for_all_layers_at_once_has_no_size_of_the_tiny_model() -> None:
    """Gemma 4 has one matrix with the embeddings of every layer, and released models have more layers than the tiny one."""
    table = _find("Gemma4ForCausalLM")
    assert table is not None
    assert table.shapes["model.embed_tokens_per_layer.weight"] == "vocab_size_per_layer_input,?"


def test_architectures_without_switches_have_required_tensors_too() -> None:
    for architecture in ("MistralForCausalLM", "Qwen2ForCausalLM"):
        table = _find(architecture)
        assert table is not None
        assert "model.layers.{}.input_layernorm.weight" in table.required


def test_every_fixture_has_whole_blocks() -> None:
    for name in ("tiny-llama", "tiny-qwen3-moe", "tiny-deepseek"):
        ckpt = open_checkpoint(str(FIXTURES / name))
        built = list_layer_tensors(ckpt.config, "model.layers")
        assert WeightsTable.of(ckpt.config) is not None
        assert built
        assert find_lacking_layers(ckpt.components.layers, built, alike=name != "tiny-deepseek") == {}


def test_each_tensor_of_each_layer_is_needed() -> None:
    for name in ("tiny-llama", "tiny-qwen3-moe"):
        ckpt = open_checkpoint(str(FIXTURES / name))
        built = list_layer_tensors(ckpt.config, "model.layers")
        for layer, names in ckpt.components.layers.items():
            for lost in names:
                layers = {**ckpt.components.layers, layer: names - {lost}}
                assert find_lacking_layers(layers, built, alike=True) == {lost: [layer]}


def test_modules_within_a_block_are_blocks() -> None:
    assert block_of("self_attn.indexer.wk.weight") == "self_attn.indexer"
    assert block_of("self_attn.sinks") == "self_attn"
    assert block_of("norm.weight") == ""
