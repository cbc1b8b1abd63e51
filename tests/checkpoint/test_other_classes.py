"""Classes for other tasks than writing text: what they call their layers, and which stack is the language model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ckptcheck
from ckptcheck.checkpoint.layout import parse_layout
from tests.factories.released_structures import Entry, Structure, write_checkpoint

BLOCK = ("attn.q", "attn.k", "attn.v", "mlp.up")


def find_errors(folder: Path, config: dict[str, Any], names: list[str], code: str) -> list[str]:
    """Scan a checkpoint of tensors of [8, 8] with these names, and return what a rule says."""
    entries: dict[str, Entry] = dict.fromkeys(names, ("F32", (8, 8)))
    write_checkpoint(Structure("made/up", "", config, []), folder, entries)
    return [one.message for one in ckptcheck.scan(folder, headers_only=True, select=[code]).findings]


@pytest.mark.parametrize(
    ("architecture", "model_type", "names"),
    [
        ("LlamaForQuestionAnswering", "llama", ["transformer.layers.{}.self_attn.q_proj.weight"]),
        ("Qwen3MoeForQuestionAnswering", "qwen3_moe", ["transformer.layers.{}.mlp.experts.0.up_proj.weight"]),
        ("T5ForTokenClassification", "t5", ["transformer.encoder.block.{}.layer.1.DenseReluDense.wi.weight"]),
        ("WhisperForAudioClassification", "whisper", ["encoder.layers.{}.fc1.weight"]),
        ("Qwen3_5Model", "qwen3_5", ["language_model.layers.{}.mlp.up_proj.weight"]),
        ("Qwen3_5ForSequenceClassification", "qwen3_5", ["model.language_model.layers.{}.mlp.up_proj.weight"]),
    ],
)
def test_other_names_in_front_of_the_same_layers(
    architecture: str, model_type: str, names: list[str], tmp_path: Path
) -> None:
    config = {"architectures": [architecture], "model_type": model_type}
    stored = [name.format(layer) for name in names for layer in range(3)]
    assert find_errors(tmp_path / "sound", config, stored, "CFG016") == []
    foreign = [f"backbone.layers.{layer}.mixer.in_proj.weight" for layer in range(3)]
    (said,) = find_errors(tmp_path / "foreign", config, foreign, "CFG016")
    assert said.startswith(f"{architecture} has no layers with these names")


def test_a_text_classifier_has_one_name_in_front(tmp_path: Path) -> None:
    config = {"architectures": ["LlamaForQuestionAnswering"], "model_type": "llama"}
    nested = [f"language_model.model.layers.{layer}.self_attn.q_proj.weight" for layer in range(3)]
    assert len(find_errors(tmp_path, config, nested, "CFG016")) == 1


def test_layers_of_layers(tmp_path: Path) -> None:
    config = {"architectures": ["FunnelForSequenceClassification"], "model_type": "funnel"}
    names = [f"funnel.encoder.blocks.{block}.{layer}.attention.q_head.weight" for block in (0, 1) for layer in (0, 1)]
    assert find_errors(tmp_path, config, names, "CFG016") == []
    assert parse_layout(names).stacks["funnel.encoder.blocks"].layers[1] == {"{}.attention.q_head.weight"}


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        # SAM 3 turns queries into masks by three linear layers.
        (
            [f"mask_decoder.mask_embedder.layers.{layer}.{last}" for layer in range(3) for last in ("weight", "bias")],
            ["text_encoder.encoder.layers"],
        ),
        # VITS turns a spectrum into sound.
        (
            [
                f"decoder.resblocks.{layer}.convs1.{at}.{last}"
                for layer in range(9)
                for at in range(3)
                for last in "abc"
            ],
            ["text_encoder.encoder.layers"],
        ),
        # The layers of a decoder are the language model's.
        (
            [f"decoder.layers.{layer}.{part}" for layer in range(4) for part in (*BLOCK, "cross_attn.q")],
            ["decoder.layers"],
        ),
    ],
)
def test_which_stacks_may_be_the_language_models(others: list[str], expected: list[str]) -> None:
    encoder = [f"text_encoder.encoder.layers.{layer}.{part}" for layer in range(4) for part in BLOCK]
    assert [stack.prefix for stack in parse_layout([*encoder, *others]).candidates] == expected


def test_linear_layers_alone_are_the_language_models() -> None:
    names = [f"model.layers.{layer}.{last}" for layer in range(3) for last in ("weight", "bias")]
    assert [stack.prefix for stack in parse_layout(names).candidates] == ["model.layers"]


@pytest.mark.parametrize(("layer", "number"), [(0, 0), (2, 1)])
def test_the_first_layer_of_an_encoder_may_be_wider(layer: int, number: int, tmp_path: Path) -> None:
    """Fun-ASR's first layer takes frames of sound of another width than that between layers."""
    config = {"architectures": ["FunAsrNanoEncoder"], "model_type": "fun_asr_nano_encoder"}
    entries: dict[str, Entry] = {
        f"layers.{at}.{part}.weight": ("F32", (8, 24 if at == layer and part == "attn.q" else 8))
        for at in range(5)
        for part in BLOCK
    }
    write_checkpoint(Structure("made/up", "", config, []), tmp_path, entries)
    found = ckptcheck.scan(tmp_path, headers_only=True, select=["CFG012"]).findings
    assert len(found) == number


@pytest.mark.parametrize(("name", "number"), [("attn.rel_pos_h", 0), ("attn.q.weight", 1)])
def test_one_layer_of_an_encoder_may_see_the_whole_image(name: str, number: int, tmp_path: Path) -> None:
    """Of SAM's layers some see a window of the image: their tables of positions are smaller."""
    config = {"architectures": ["SamModel"], "model_type": "sam"}
    entries: dict[str, Entry] = {
        f"vision_encoder.layers.{at}.{part}": ("F32", (64 if at == 2 and part == name else 14, 8))
        for at in range(6)
        for part in ("attn.q.weight", "attn.k.weight", "attn.rel_pos_h", "attn.rel_pos_w")
    }
    entries |= {f"mask_decoder.transformer.layers.{at}.{part}": ("F32", (8, 8)) for at in range(2) for part in BLOCK}
    write_checkpoint(Structure("made/up", "", config, []), tmp_path, entries)
    found = ckptcheck.scan(tmp_path, headers_only=True, select=["CFG012"]).findings
    assert len(found) == number


def scan_tables(
    folder: Path, config: dict[str, Any], entries: dict[str, Entry], stack: str = "decoder.layers"
) -> list[str]:
    """Scan tensors beside the layers of a decoder, and return what is an error about them."""
    layers: dict[str, Entry] = {f"{stack}.{at}.{part}": ("F32", (8, 8)) for at in range(3) for part in BLOCK}
    write_checkpoint(Structure("made/up", "", config, []), folder, {**layers, **entries})
    found = ckptcheck.scan(folder, headers_only=True, select=["CFG003", "CFG012"]).findings
    return [f"{one.code} {one.key}" for one in found]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(32128, []), (2000, ["CFG012 text_encoder.shared.weight", "CFG012 text_encoder.shared.weight"])],
)
def test_a_table_of_another_part_of_the_model(rows: int, expected: list[str], tmp_path: Path) -> None:
    """MusicGen's T5 has a table of its own, and its decoder one for each codebook."""
    config = {
        "architectures": ["MusicgenForConditionalGeneration"],
        "model_type": "musicgen",
        "text_encoder": {"model_type": "t5", "vocab_size": 32128, "d_model": 8},
        "audio_encoder": {"model_type": "encodec"},
        "decoder": {"model_type": "musicgen_decoder", "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 3},
    }
    entries: dict[str, Entry] = {"text_encoder.shared.weight": ("F32", (rows, 8))}
    entries |= {f"decoder.model.decoder.embed_tokens.{at}.weight": ("F32", (65, 16)) for at in range(4)}
    entries |= {f"decoder.model.decoder.layers.{at}.self_attn.q_proj.weight": ("F32", (16, 16)) for at in range(3)}
    found = scan_tables(tmp_path, config, entries, "decoder.model.decoder.layers")
    assert [text for text in found if text.startswith("CFG012")] == expected


def test_a_table_that_is_stored_in_two_parts(tmp_path: Path) -> None:
    """Molmo 2 joins its tokens and the added ones, and saves them in halves."""
    config: dict[str, Any] = {
        "architectures": ["Molmo2TextModel"],
        "model_type": "molmo2_text",
        "vocab_size": 100,
        "hidden_size": 8,
    }
    config["num_hidden_layers"] = 3
    half: Entry = ("F32", (64, 8))
    entries: dict[str, Entry] = {"decoder.wte.embedding": half, "decoder.wte.new_embedding": half}
    assert scan_tables(tmp_path / "two", config, entries) == []
    del entries["decoder.wte.new_embedding"]
    assert scan_tables(tmp_path / "one", config, entries) == ["CFG012 decoder.wte.embedding"]


def test_a_backbone_of_images_has_no_embedding(tmp_path: Path) -> None:
    config = {
        "architectures": ["OneFormerModel"],
        "model_type": "oneformer",
        "text_encoder_vocab_size": 64,
        "decoder_layers": 4,
    }
    backbone = {"backbone_config": {"model_type": "swin"}}
    assert scan_tables(tmp_path / "images", {**config, **backbone}, {}) == []
    assert "CFG003 None" in scan_tables(tmp_path / "text", config, {})


def test_the_layers_that_read_text_beside_those_that_place_boxes() -> None:
    tower = [f"text_backbone.encoder.layer.{layer}.{part}" for layer in range(4) for part in BLOCK]
    boxes = [f"decoder.layers.{layer}.{part}" for layer in range(2) for part in BLOCK]
    assert [stack.prefix for stack in parse_layout([*tower, *boxes]).candidates] == ["text_backbone.encoder.layer"]


def test_a_model_of_images_is_not_held_against_its_relative_for_text(tmp_path: Path) -> None:
    """Perceiver's encoder is as wide as what it reads."""
    name = "perceiver.encoder.cross_attention.attention.self.layernorm2.weight"
    for architecture, number in (
        ("PerceiverForImageClassificationLearned", 0),
        ("PerceiverForSequenceClassification", 1),
    ):
        config = {"architectures": [architecture], "model_type": "perceiver", "d_model": 768}
        folder = tmp_path / architecture
        write_checkpoint(Structure("made/up", "", config, []), folder, {name: ("F32", (512,))})
        assert len(ckptcheck.scan(folder, headers_only=True, select=["CFG012"]).findings) == number
