"""Whole parts that are absent or lie under another prefix, and tensors that are one rank's shards, in released structures."""

from __future__ import annotations

import json
import re
from math import prod
from pathlib import Path

import pytest

import ckptcheck
from tests.factories.released_structures import Entry, load_structure, write_checkpoint

COLUMNS = re.compile(r"(q_proj|k_proj|v_proj|gate_proj|up_proj|embed_tokens|lm_head)\.weight$")
ROWS = re.compile(r"(o_proj|down_proj)\.weight$")
VECTORS = re.compile(r"mixer\.(A_log|D|dt_bias)$")
"""Mamba's numbers a head, which an exporter may count as replicated (NVIDIA/Model-Optimizer#931)."""


def list_shape_and_name_findings(name: str, folder: Path, entries: dict[str, Entry]) -> list[tuple[str, str, str]]:
    report = ckptcheck.scan(write_checkpoint(load_structure(name), folder, entries), headers_only=True)
    assert not report.crashed
    return [
        (finding.severity, finding.code, finding.message)
        for finding in report.findings
        if finding.code in ("CFG003", "CFG004", "CFG012", "CFG016")
    ]


@pytest.mark.parametrize(
    ("name", "prefix", "expected"),
    [
        (
            "google--gemma-4-E2B",
            "model.audio_tower.",
            "audio_config describes model.audio_tower, and nothing of it is stored; "
            "transformers fills 29 kinds of tensors with random numbers",
        ),
        (
            "zai-org--GLM-4.1V-9B-Thinking",
            "model.visual.",
            "vision_config describes model.visual, and nothing of it is stored; "
            "transformers fills 20 kinds of tensors with random numbers",
        ),
        (
            "mistralai--Voxtral-Mini-3B-2507",
            "audio_tower.",
            "nothing is stored for all of model.audio_tower, which every VoxtralForConditionalGeneration has",
        ),
        (
            "Qwen--Qwen3-Next-80B-A3B-Instruct",
            r"model\.layers\.\d+\.linear_attn\.",
            "nothing is stored for all of model.layers.{}.linear_attn, which Qwen3NextForCausalLM has with this config",
        ),
        (
            "Qwen--Qwen3-Next-80B-A3B-Instruct",
            r"model\.layers\.\d+\.mlp\.shared_expert_gate\.",
            "shared_expert_intermediate_size is 512, but layers 0-47 of model.layers lack mlp.shared_expert_gate.weight",
        ),
        (
            "Qwen--Qwen3.5-35B-A3B",
            r"model\.language_model\.layers\.\d+\.self_attn\.",
            "nothing is stored for all of model.language_model.layers.{}.self_attn, "
            "which Qwen3_5MoeForConditionalGeneration has with this config",
        ),
    ],
)
def test_a_tower_that_the_config_describes_is_absent(name: str, prefix: str, expected: str, tmp_path: Path) -> None:
    entries = {key: entry for key, entry in load_structure(name).entries.items() if not re.match(prefix, key)}
    assert list_shape_and_name_findings(name, tmp_path, entries) == [("error", "CFG003", expected)]


def test_a_module_of_each_layer_under_another_name_is_found_there(tmp_path: Path) -> None:
    name = "Qwen--Qwen3.5-35B-A3B"
    entries = {key.replace(".linear_attn.", ".gdn."): entry for key, entry in load_structure(name).entries.items()}
    (found,) = list_shape_and_name_findings(name, tmp_path, entries)
    assert found[:2] == ("error", "CFG003")
    assert "its 270 tensors are here, under model.language_model.layers.{}.gdn" in found[2]


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("Qwen--Qwen3-30B-A3B", "policy"),
        ("Qwen--Qwen3-30B-A3B", "base_model.model"),
        ("mistralai--Voxtral-Mini-3B-2507", "thinker"),
        ("google--gemma-7b", "actor"),
    ],
)
def test_a_prefix_in_front_of_all_names_is_one_finding(name: str, prefix: str, tmp_path: Path) -> None:
    entries = {f"{prefix}.{key}": entry for key, entry in load_structure(name).entries.items()}
    (found,) = list_shape_and_name_findings(name, tmp_path, entries)
    assert found[:2] == ("error", "CFG016")
    assert f"all {len(entries):,} tensors are under {prefix}, and without it they have the names of" in found[2]


def test_half_of_an_encoder_decoder_is_absent(tmp_path: Path) -> None:
    """Whisper is in no learned table: its config counts the layers of both halves."""
    name = "facebook--bart-large"
    entries = {key: entry for key, entry in load_structure(name).entries.items() if ".encoder." not in key}
    folder = write_checkpoint(load_structure(name), tmp_path, entries)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "is_encoder_decoder": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    found = [
        finding.message for finding in ckptcheck.scan(folder, headers_only=True).findings if finding.code == "CFG003"
    ]
    assert found == [
        "encoder_layers is 12, and nothing of the encoder is stored: loaders start it from random numbers, or stop"
    ]


def test_a_tower_of_unknown_code_is_absent(tmp_path: Path) -> None:
    name = "OpenGVLab--InternVL2_5-8B"
    entries = {key: entry for key, entry in load_structure(name).entries.items() if not key.startswith("vision_model.")}
    assert list_shape_and_name_findings(name, tmp_path, entries) == [
        (
            "warning",
            "CFG003",
            "vision_config describes a part of the model, and nothing of it is stored; "
            "what loads it starts from random numbers, or stops",
        )
    ]


@pytest.mark.parametrize(
    ("name", "prefix", "number"),
    [
        ("zai-org--GLM-4.1V-9B-Thinking", "model.visual", 181),
        ("Qwen--Qwen2-VL-7B-Instruct", "visual", 391),
        ("google--gemma-4-E2B", "model.vision_tower", 210),
    ],
)
def test_a_tower_under_another_prefix_is_found_there(name: str, prefix: str, number: int, tmp_path: Path) -> None:
    entries = {
        f"language_model.{key}" if key.startswith(f"{prefix}.") else key: entry
        for key, entry in load_structure(name).entries.items()
    }
    wanted = prefix if prefix.startswith("model.") else f"model.{prefix}"
    assert list_shape_and_name_findings(name, tmp_path, entries) == [
        (
            "error",
            "CFG003",
            f"nothing is stored under {wanted}, where transformers looks for it: its {number} tensors "
            f"are here, under language_model.{prefix}",
        )
    ]


@pytest.mark.parametrize(
    ("name", "ranks", "reason"),
    [
        ("HuggingFaceTB--SmolLM3-3B", 2, "and 1/2 of what the model has: they are the shards of one of 2 ranks"),
        ("Qwen--Qwen1.5-MoE-A2.7B", 8, "and 1/8 of what the model has: they are the shards of one of 8 ranks"),
        ("OpenGVLab--InternVL2_5-8B", 2, "as shards of ranks are before they are joined"),
    ],
)
def test_flat_shards_are_one_finding(name: str, ranks: int, reason: str, tmp_path: Path) -> None:
    entries = {
        key: (dtype, (-(-prod(shape) // ranks),) if shape else shape)
        for key, (dtype, shape) in load_structure(name).entries.items()
    }
    assert list_shape_and_name_findings(name, tmp_path, entries) == [
        ("error", "CFG012", f"all {len(entries):,} tensors are flat, {reason}")
    ]


def test_the_shards_of_a_tensor_parallel_rank_are_one_finding(tmp_path: Path) -> None:
    name = "HuggingFaceTB--SmolLM3-3B"
    entries = {}
    for key, (dtype, shape) in load_structure(name).entries.items():
        if COLUMNS.search(key):
            shape = (shape[0] // 4, shape[1])
        elif ROWS.search(key):
            shape = (shape[0], shape[1] // 4)
        entries[key] = dtype, shape
    (found,) = list_shape_and_name_findings(name, tmp_path, entries)
    assert found[2] == (
        "253 tensors are 1/4 of what the model has along one dimension, this one [32064, 2048] for [128256, 2048]: they are the "
        "shards of one of 4 tensor-parallel ranks"
    )


def test_the_first_rows_of_every_parameter_are_a_shard_of_fsdp(tmp_path: Path) -> None:
    """torch.chunk cuts 257 positions into 65, and 62 for the last rank; tensor parallelism would leave norms whole."""
    name = "google--paligemma-3b-pt-224"
    entries = {
        key: (dtype, (-(-shape[0] // 4), *shape[1:]) if shape else shape)
        for key, (dtype, shape) in load_structure(name).entries.items()
    }
    (found,) = list_shape_and_name_findings(name, tmp_path, entries)
    assert found[:2] == ("error", "CFG012")
    assert found[2].endswith("they are the shards of one of 4 ranks")
    name = "llava-hf--llava-1.5-7b-hf"
    entries = {
        key: (dtype, (shape[0] - 3 * -(-shape[0] // 4), *shape[1:]) if shape and shape[0] > 4 else shape)
        for key, (dtype, shape) in load_structure(name).entries.items()
    }
    (found,) = list_shape_and_name_findings(name, tmp_path / "last", entries)
    assert found[2].endswith("they are the shards of the last of 4 ranks, which has what the others leave")
    (found,) = list_shape_and_name_findings(name, tmp_path / "model_world_size_4_rank_1", entries)
    assert found[2].endswith("they are the shards of rank 1 of 4 ranks, as model_world_size_4_rank_1 says")


def test_vectors_of_one_rank_beside_whole_matrices(tmp_path: Path) -> None:
    name = "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
    entries = {
        key: (dtype, (shape[0] // 2,) if VECTORS.search(key) else shape)
        for key, (dtype, shape) in load_structure(name).entries.items()
    }
    (found,) = list_shape_and_name_findings(name, tmp_path, entries)
    assert "this one [32] for [64], while others that the same settings size are whole: they are the shards" in found[2]


def test_one_wrong_setting_is_not_taken_for_shards(tmp_path: Path) -> None:
    """All matrices of the feed-forward block are half as wide as config.json says: the setting may be wrong as well."""
    name = "HuggingFaceTB--SmolLM3-3B"
    entries = {}
    for key, (dtype, shape) in load_structure(name).entries.items():
        if key.endswith(("gate_proj.weight", "up_proj.weight")):
            shape = (shape[0] // 2, shape[1])
        elif key.endswith("down_proj.weight"):
            shape = (shape[0], shape[1] // 2)
        entries[key] = dtype, shape
    (found,) = list_shape_and_name_findings(name, tmp_path, entries)
    assert "intermediate_size is 11,008" in found[2]


@pytest.mark.parametrize(
    ("name", "drop", "said"),
    [
        ("openai--whisper-large-v3", ".encoder_attn.", "no layer of the decoder has a cross-attention to the encoder"),
        ("OpenGVLab--InternVL2_5-8B", "mlp1.", "the projector is not stored"),
    ],
)
def test_what_joins_two_parts_is_asked_for(name: str, drop: str, said: str, tmp_path: Path) -> None:
    entries = {key: entry for key, entry in load_structure(name).entries.items() if drop not in key}
    (found,) = list_shape_and_name_findings(name, tmp_path, entries)
    assert found[1] == "CFG003"
    assert said in found[2]


def test_a_wrappers_name_in_front_of_a_class_without_a_table(tmp_path: Path) -> None:
    name = "openai--whisper-large-v3"
    entries = {f"module.{key}": entry for key, entry in load_structure(name).entries.items()}
    assert list_shape_and_name_findings(name, tmp_path, entries) == [
        ("error", "CFG016", "all 1,259 tensors are under module, where no class of transformers looks for them")
    ]
