"""Parts of transformers' models that are saved alone, and models that join several: what their layers are held against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ckptcheck
from ckptcheck.checkpoint.layout import parse_layout
from tests.factories.released_structures import Entry, Structure, write_checkpoint

BLOCK = ("attn.q.weight", "attn.k.weight", "attn.v.weight", "mlp.up.weight")
CODES = ["CFG003", "CFG012"]


def scan(folder: Path, config: dict[str, Any], entries: dict[str, Entry]) -> list[str]:
    """Scan a checkpoint, and return what is an error about its layers, its tables and its config."""
    write_checkpoint(Structure("made/up", "", config, []), folder, entries)
    found = ckptcheck.scan(folder, headers_only=True, select=CODES).findings
    return [f"{one.code} {one.key}" for one in found]


def layers(prefix: str, number: int, width: int = 8) -> dict[str, Entry]:
    """Return the tensors of a stack of layers."""
    return {f"{prefix}.{layer}.{part}": ("F32", (width, width)) for layer in range(number) for part in BLOCK}


@pytest.mark.parametrize(
    ("model_type", "architecture", "table", "sizes"),
    [
        ("clvp_decoder", "ClvpDecoder", "input_embeds_layer.weight", {"num_hidden_layers": 3, "vocab_size": 32}),
        ("semantic", "BarkSemanticModel", "input_embeds_layer.weight", {"num_layers": 3, "input_vocab_size": 32}),
        ("fine_acoustics", "BarkFineModel", "input_embeds_layers.0.weight", {"num_layers": 3, "input_vocab_size": 32}),
        ("csm", "CsmBackboneModel", "embed_tokens.embed_audio_tokens.weight", {"num_hidden_layers": 3}),
        (
            "qwen3_omni_moe_talker_code_predictor",
            "Qwen3OmniMoeTalkerCodePredictorModel",
            "codec_embedding.0.weight",
            {"num_hidden_layers": 3, "vocab_size": 32},
        ),
    ],
)
def test_tables_that_are_called_otherwise(
    model_type: str, architecture: str, table: str, sizes: dict[str, int], tmp_path: Path
) -> None:
    config = {"architectures": [architecture], "model_type": model_type, "hidden_size": 8, **sizes}
    assert scan(tmp_path / "sound", config, {**layers("layers", 3), table: ("F32", (32, 8))}) == []
    assert scan(tmp_path / "lost", config, layers("layers", 3)) == ["CFG003 None"]


@pytest.mark.parametrize(("rows", "expected"), [(4 * 51, []), (3 * 51, ["CFG012 embed_tokens.weight"])])
def test_one_table_for_all_codebooks(rows: int, expected: list[str], tmp_path: Path) -> None:
    """CSM's depth decoder reads what its wider backbone wrote."""
    config = {"architectures": ["CsmDepthDecoderModel"], "model_type": "csm_depth_decoder_model", "num_codebooks": 4}
    config |= {"vocab_size": 51, "hidden_size": 8, "backbone_hidden_size": 16, "num_hidden_layers": 3}
    assert scan(tmp_path, config, {**layers("layers", 3), "embed_tokens.weight": ("F32", (rows, 16))}) == expected


@pytest.mark.parametrize(("rows", "expected"), [(12, []), (13, ["CFG012 lm_head.weight"])])
def test_a_head_that_writes_images_alone(rows: int, expected: list[str], tmp_path: Path) -> None:
    text = {"vocab_size": 64, "vision_vocab_size": 12, "hidden_size": 8, "num_hidden_layers": 3}
    config = {"architectures": ["GlmImageForConditionalGeneration"], "model_type": "glm_image", "text_config": text}
    tables: dict[str, Entry] = {"model.language_model.embed_tokens.weight": ("F32", (64, 8))}
    tables["lm_head.weight"] = "F32", (rows, 8)
    assert scan(tmp_path, config, {**layers("model.language_model.layers", 3), **tables}) == expected


def test_the_layers_that_read_text_beside_those_that_draw_masks(tmp_path: Path) -> None:
    """CLIPSeg's decoder has a layer for each layer of the images that it reads."""
    entries = {**layers("clip.text_model.encoder.layers", 4), **layers("decoder.layers", 2)}
    assert [stack.prefix for stack in parse_layout(entries).candidates] == ["clip.text_model.encoder.layers"]
    entries["clip.text_model.embeddings.token_embedding.weight"] = "F32", (32, 8)
    config: dict[str, Any] = {"architectures": ["CLIPSegForImageSegmentation"], "model_type": "clipseg"}
    config["text_config"] = {"num_hidden_layers": 4, "hidden_size": 8, "vocab_size": 32}
    assert scan(tmp_path / "sound", config, entries) == []
    config["text_config"]["num_hidden_layers"] = 5
    assert scan(tmp_path / "lost", config, entries) == ["CFG003 text_config.num_hidden_layers"]


def test_the_layers_that_read_text_beside_those_that_place_boxes() -> None:
    """OmDet calls what Grounding DINO calls `text_backbone` otherwise."""
    entries = {**layers("language_backbone.model.encoder.layers", 4), **layers("decoder.layers", 2)}
    assert [stack.prefix for stack in parse_layout(entries).candidates] == ["language_backbone.model.encoder.layers"]


def test_an_encoder_of_images_beside_a_q_former(tmp_path: Path) -> None:
    config = {"architectures": ["Blip2VisionModelWithProjection"], "model_type": "blip-2"}
    entries = {**layers("qformer.encoder.layer", 12), **layers("vision_model.encoder.layers", 3)}
    assert scan(tmp_path, config, entries) == []


@pytest.mark.parametrize(("number", "expected"), [(3, []), (5, []), (4, ["CFG003 encoder_layers"])])
def test_one_half_of_a_pair_alone(number: int, expected: list[str], tmp_path: Path) -> None:
    config = {"architectures": ["PPFormulaNetTextModel"], "model_type": "pp_formulanet_text", "d_model": 8}
    config |= {"encoder_layers": 5, "decoder_layers": 3, "vocab_size": 32}
    entries: dict[str, Entry] = {**layers("layers", number), "embed_tokens.weight": ("F32", (32, 8))}
    assert scan(tmp_path, config, entries) == expected


@pytest.mark.parametrize(("prefix", "number"), [("esmc", 0), ("trunk", 1)])
def test_layers_of_another_part_are_as_wide_as_that_says(prefix: str, number: int, tmp_path: Path) -> None:
    config = {"architectures": ["EsmFold2Model"], "model_type": "esmfold2", "hidden_size": 8, "vocab_size": 32}
    config |= {"esmc_config": {"hidden_size": 16}}
    entries = layers(f"{prefix}.layers", 3, 16)
    entries |= {f"{prefix}.layers.{layer}.input_layernorm.weight": ("F32", (16,)) for layer in range(3)}
    found = [text for text in scan(tmp_path, config, entries) if text.startswith("CFG012")]
    assert len(found) == number


def test_a_number_of_experts_for_each_layer(tmp_path: Path) -> None:
    config: dict[str, Any] = {"architectures": ["Dots3NoteVisionModel"], "model_type": "dots3_note_vision_encoder"}
    config |= {"num_local_experts": 4, "num_hidden_layers": 2, "hidden_size": 8}
    entries: dict[str, Entry] = {
        f"blocks.{layer}.{part}": ("F32", (8, 8))
        for layer in range(2)
        for part in (*BLOCK, *(f"mlp.experts.{expert}.up_proj.weight" for expert in range(2 + 2 * layer)))
    }
    assert scan(tmp_path / "same", config, entries) == ["CFG003 blocks.0.mlp.experts"]
    config["per_layer_config"] = {"0": {"num_local_experts": 2}, "1": {"num_local_experts": 4}}
    assert scan(tmp_path / "own", config, entries) == []
