"""The names under which transformers finds a parameter, and which layers fill it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ckptcheck.checkpoint import parameters_table
from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.layout import parse_layout
from ckptcheck.checkpoint.parameters_table import MOST_MEMBERS, ParametersTable, list_samples
from ckptcheck.checkpoint.weights_table import WeightsTable

TABLE = Path(parameters_table.__file__).with_name("parameters.json")
LLAVA = {
    "model_type": "llava",
    "architectures": ["LlavaForConditionalGeneration"],
    "text_config": {"model_type": "llama"},
    "vision_config": {"model_type": "clip_vision_model"},
}


def table_of(**changes: object) -> ParametersTable | None:
    return ParametersTable.of(Config("config.json", {**LLAVA, **changes}, readable=True))


@pytest.mark.parametrize(
    "stored",
    [
        "language_model.model.layers.1.mlp.up_proj.weight",
        "model.language_model.layers.1.mlp.up_proj.weight",
        "language_model.layers.1.mlp.up_proj.weight",
    ],
)
def test_old_and_new_names_fill_the_same_parameter(stored: str) -> None:
    table, layout = table_of(), parse_layout([stored, stored.replace(".1.", ".4.")])
    assert table is not None
    places = table.find_places(layout, list_samples(layout))
    assert places["model.language_model.layers.{}.mlp.up_proj.weight"] == {1, 4}
    assert "model.language_model.layers.{}.mlp.up_proj.weight" in table.needs


def test_a_tower_of_another_type_has_other_parameters() -> None:
    assert table_of(vision_config={"model_type": "siglip_vision_model"}) is None
    assert table_of(auto_map={"AutoModel": "modeling.Model"}) is None
    assert table_of(architectures=["LlamaForCausalLM"]) is None


def test_a_prefix_that_a_wrapper_left_hides_everything() -> None:
    table = table_of()
    layout = parse_layout(
        ["module.language_model.model.layers.0.mlp.up_proj.weight", "module.language_model.lm_head.weight"]
    )
    assert table is not None
    assert not table.needs & table.find_places(layout, list_samples(layout)).keys()


def test_few_names_stand_for_many() -> None:
    names = [f"model.layers.{layer}.mlp.experts.{expert}.w1.weight" for layer in range(50) for expert in range(60)]
    samples = list_samples(
        parse_layout([*names, *(f"model.layers.{layer}.norm.weight" for layer in range(50)), "head"])
    )
    assert len(samples) == 2 * MOST_MEMBERS + 1


def test_what_transformers_renames_is_compiled() -> None:
    table = table_of()
    assert table is not None
    assert all(isinstance(step.pattern, re.Pattern) for step in table.renamings)
    assert len(table.renamings) > len(table.renames)  # those of all architectures come after its own


@pytest.mark.parametrize(("size", "added"), [(40, True), (0, False), ("absent", True)])
def test_a_size_adds_parameters_to_every_layer(size: int | str, added: bool) -> None:
    config: dict[str, object] = {"model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"]}
    if size != "absent":
        config["hidden_size_per_layer_input"] = size
    read = Config("config.json", config, readable=True)
    table = ParametersTable.of(read)
    assert table is not None
    assert read.resolved is not None
    assert ("model.layers.{}.per_layer_projection.weight" in table.list_given(read.resolved)) is added


def test_what_is_tied_to_another_parameter_need_not_be_stored() -> None:
    config = Config("config.json", {"model_type": "ernie", "architectures": ["ErnieForCausalLM"]}, readable=True)
    table = WeightsTable.of(config)
    assert table is not None
    assert "ernie.embeddings.word_embeddings.weight" in table.required
    assert not any(name.startswith("cls.predictions.decoder") for name in table.required)


@pytest.mark.parametrize(
    ("model_type", "architecture", "needed"),
    [
        ("bert", "BertModel", "encoder.layer.{}.output.dense.weight"),
        ("bert", "BertForQuestionAnswering", "bert.encoder.layer.{}.output.dense.weight"),
        ("bert", "BertForQuestionAnswering", "qa_outputs.weight"),
        ("qwen3", "Qwen3Model", "layers.{}.mlp.up_proj.weight"),
        ("qwen3", "Qwen3ForQuestionAnswering", "transformer.layers.{}.mlp.up_proj.weight"),
        ("t5", "T5Model", "decoder.block.{}.layer.{}.EncDecAttention.k.weight"),
    ],
)
def test_a_relative_has_the_layers_of_the_language_model(model_type: str, architecture: str, needed: str) -> None:
    config = Config("config.json", {"model_type": model_type, "architectures": [architecture]}, readable=True)
    table = ParametersTable.of(config)
    assert table is not None
    assert needed in table.needs
    assert not any("lm_head" in name or "cls." in name or "pooler" in name for name in table.needs)


def test_each_relative_shares_with_a_class_of_the_table() -> None:
    facts = json.loads(TABLE.read_text(encoding="utf-8"))
    relatives = facts["relatives"]
    assert len(relatives) > 600
    assert {found["of"] for found in relatives.values()} <= facts["architectures"].keys()
    assert not relatives.keys() & facts["architectures"].keys()
