"""What a loader does with some released models that the names of their tensors do not show, and what it still misses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ckptcheck
from tests.factories.released_structures import Entry, Structure, load_structure, write_checkpoint
from tests.test_released_structures import errors, scan

Change = Callable[[dict[str, Entry]], None]


def drop(*names: str) -> Change:
    def change(entries: dict[str, Entry]) -> None:
        for name in names:
            del entries[name]

    return change


def reshape(name: str, *shape: int) -> Change:
    def change(entries: dict[str, Entry]) -> None:
        entries[name] = entries[name][0], shape

    return change


GEMMA = "model.language_model.layers"
TORN: list[tuple[str, Change, str]] = [
    # Layers 15 to 34 share keys and values with earlier ones; the others have their own.
    ("google--gemma-4-E2B", drop(f"{GEMMA}.3.self_attn.k_proj.weight"), "CFG003"),
    ("google--gemma-4-E2B", drop(f"{GEMMA}.20.self_attn.q_proj.weight"), "CFG003"),
    # Their feed-forward blocks are twice as wide.
    ("google--gemma-4-E2B", reshape(f"{GEMMA}.20.mlp.up_proj.weight", 6144, 1536), "CFG012"),
    ("google--gemma-4-E2B", reshape(f"{GEMMA}.3.mlp.up_proj.weight", 12288, 1536), "CFG012"),
    # transformers serves them with the classes of Llama and GLM-4.5, and renames.
    ("LGAI-EXAONE--EXAONE-3.0-7.8B-Instruct", drop("transformer.h.7.mlp.c_fc_1.weight"), "CFG003"),
    ("LGAI-EXAONE--EXAONE-3.0-7.8B-Instruct", drop("transformer.ln_f.weight"), "CFG003"),
    ("sarvamai--sarvam-30b", drop("model.layers.7.attention.dense.weight"), "CFG003"),
    ("sarvamai--sarvam-30b", drop("model.norm.weight"), "CFG003"),
    ("XiaomiMiMo--MiMo-V2-Flash", drop("model.layers.3.self_attn.attention_sink_bias"), "CFG003"),
]


@pytest.mark.parametrize(("name", "change", "code"), TORN)
def test_a_torn_one_is_still_seen(name: str, change: Change, code: str, tmp_path: Path) -> None:
    structure = load_structure(name)
    entries = dict(structure.entries)
    change(entries)
    assert [text.split()[0] for text in errors(scan(write_checkpoint(structure, tmp_path, entries)))] == [code]


def test_a_prefix_before_every_name_of_a_served_model_is_another_layout(tmp_path: Path) -> None:
    structure = load_structure("LGAI-EXAONE--EXAONE-3.0-7.8B-Instruct")
    entries = {f"module.{name}": entry for name, entry in structure.entries.items()}
    assert "CFG016" in {text.split()[0] for text in errors(scan(write_checkpoint(structure, tmp_path, entries)))}


def test_the_only_layer_of_its_kind_may_have_no_sink(tmp_path: Path) -> None:
    """Five layers of MiMo-V2-Flash, of which one attends to everything: only those with windows have sinks."""
    whole = load_structure("XiaomiMiMo--MiMo-V2-Flash")
    kept = {f"model.layers.{layer}." for layer in range(1, 6)}
    entries: dict[str, Entry] = {}
    for name, entry in whole.entries.items():
        prefix = next((prefix for prefix in kept if name.startswith(prefix)), None)
        if prefix is not None:
            layer = int(prefix.split(".")[2])
            entries[f"model.layers.{layer - 1}.{name.removeprefix(prefix)}"] = entry
        elif ".layers." not in name:
            entries[name] = entry
    config = {**whole.config, "num_hidden_layers": 5}
    config |= {key: whole.config[key][1:6] for key in ("layer_types", "mlp_layer_types")}
    assert config["layer_types"].count("full_attention") == 1
    structure = replace(whole, config=config)
    assert errors(scan(write_checkpoint(structure, tmp_path / "sound", entries))) == []
    del entries["model.layers.2.self_attn.attention_sink_bias"]
    assert [text.split()[0] for text in errors(scan(write_checkpoint(structure, tmp_path / "torn", entries)))] == [
        "CFG003"
    ]


@pytest.mark.parametrize(("model_type", "found"), [("deepseek_ref", []), ("deepseek_reff", ["CFG022"])])
def test_a_type_that_an_engine_registers_itself(model_type: str, found: list[str], tmp_path: Path) -> None:
    whole = load_structure("deepseek-ai--DeepSeek-V4-Flash")
    structure = replace(whole, config={**whole.config, "model_type": model_type, "transformers_version": "4.57.1"})
    told = [text.split()[0] for text in errors(scan(write_checkpoint(structure, tmp_path)))]
    assert [code for code in told if code == "CFG022"] == found


def write_mixed(folder: Path, *, with_file: bool) -> Path:
    """Write a Nemotron 3 Nano in mixed precision: config.json names no layers, hf_quant_config.json names them."""
    import learn_structures

    plain = load_structure("nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    recipes = {"NVFP4": r"\.experts\.", "FP8": r"(in|out|o)_proj\.|shared_experts\."}
    entries: dict[str, Entry] = dict(plain.entries)
    for algorithm, only in recipes.items():
        entries = learn_structures.quantize(entries, f"modelopt-{algorithm.lower()}", only, "")
    layers: dict[str, dict[str, Any]] = {}
    for name in plain.entries:
        module = name.removesuffix(".weight")
        if f"{module}.weight_scale_2" in entries:
            layers[module] = {"quant_algo": "NVFP4", "group_size": 16}
        elif f"{module}.weight_scale" in entries:
            layers[module] = {"quant_algo": "FP8"}
    assert len(layers) == 5986  # as many as the release has
    rest = [name.removesuffix(".weight") for name in plain.entries if name.endswith(".weight")]
    ignored = [module for module in rest if module not in layers and ".norm" not in module]
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "ignore": ignored}
    settings = {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None, "exclude_modules": ignored}
    whole = {
        "producer": {"name": "modelopt", "version": "0.41.0"},
        "quantization": {**settings, "quantized_layers": layers},
    }
    structure: Structure = replace(
        plain,
        config={**plain.config, "quantization_config": config},
        files={"hf_quant_config.json": whole} if with_file else {},
    )
    return write_checkpoint(structure, folder, entries)


def test_mixed_precision_whose_layers_only_the_file_beside_config_names(tmp_path: Path) -> None:
    """vLLM 0.32 and SGLang 0.5.23 read hf_quant_config.json where config.json has no `quantized_layers`."""
    folder = write_mixed(tmp_path / "whole", with_file=True)
    assert errors(scan(folder)) == []
    document = json.loads((folder / "hf_quant_config.json").read_text())
    document["quantization"]["quantized_layers"]["backbone.layers.0.mixer.in_proj"]["quant_algo"] = "FP7"
    (folder / "hf_quant_config.json").write_text(json.dumps(document))
    assert errors(scan(folder))


def test_mixed_precision_without_the_file_is_refused(tmp_path: Path) -> None:
    report = ckptcheck.scan(write_mixed(tmp_path / "torn", with_file=False), headers_only=True)
    assert {text.split()[0] for text in errors(report)} >= {"QNT027"}
