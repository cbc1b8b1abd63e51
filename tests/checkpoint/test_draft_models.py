"""Draft models and other checkpoints whose parts lie elsewhere: they take embedding and head from another model, or number them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ckptcheck
from tests.factories.released_structures import Entry, Structure, write_checkpoint

SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 512,
    "head_dim": 16,
}  # fmt: skip
LLAMA = {**SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False}
ATTENTION = {f"self_attn.{part}_proj.weight": (64, 64) for part in "qkvo"}
MLP = {"mlp.gate_proj.weight": (128, 64), "mlp.up_proj.weight": (128, 64), "mlp.down_proj.weight": (64, 128)}
NORMS = {"input_layernorm.weight": (64,), "post_attention_layernorm.weight": (64,)}


def number(prefix: str, layers: int, parts: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {f"{prefix}.{layer}.{part}": shape for layer in range(layers) for part, shape in parts.items()}


EAGLE = {
    **number("layers", 1, {**ATTENTION, **MLP, "post_attention_layernorm.weight": (64,)}),
    "fc.weight": (64, 128), "embed_tokens.weight": (512, 64),
}  # fmt: skip
EAGLE3 = {
    **{f"midlayer.self_attn.{part}_proj.weight": (64, 128) for part in "qkv"}, "midlayer.self_attn.o_proj.weight": (64, 64),
    **{f"midlayer.{part}": shape for part, shape in {**MLP, **NORMS, "hidden_norm.weight": (64,)}.items()},
    "fc.weight": (64, 192), "norm.weight": (64,), "lm_head.weight": (256, 64), "d2t": (256,), "t2d": (512,),
}  # fmt: skip
DFLASH = {
    **number("layers", 5, {**ATTENTION, **MLP, **NORMS}),
    "fc.weight": (64, 320), "hidden_norm.weight": (64,), "norm.weight": (64,),
}  # fmt: skip
NEXTN = number("model.layers", 1, {
    **ATTENTION, **MLP, **NORMS, "eh_proj.weight": (64, 128), "enorm.weight": (64,), "hnorm.weight": (64,),
    "shared_head.norm.weight": (64,), "shared_head.head.weight": (512, 64), "embed_tokens.weight": (512, 64),
})  # fmt: skip
MEDUSA = {
    **number("blocks", 5, {"layers.0.weight": (64, 64), "layers.0.bias": (64,)}), **number("lm_heads", 5, {"weight": (512, 64)}),
}  # fmt: skip
MLP_SPECULATOR = {
    **number("speculator.emb", 4, {"weight": (512, 128)}), **number("speculator.head", 4, {"weight": (512, 128)}),
    **number("speculator.ln", 4, {"weight": (128,), "bias": (128,)}), "speculator.proj.0.weight": (128, 64),
    **{f"speculator.proj.{head}.weight": (128, 128) for head in (1, 2, 3)},
}  # fmt: skip
PHI_1_5 = {
    "layers.0.wte.weight": (512, 64), "layers.5.ln.weight": (64,), "layers.5.linear.weight": (512, 64),
    **{
        f"layers.{layer}.{part}.weight": shape
        for layer in range(1, 5)
        for part, shape in {
            "ln": (64,), "mixer.Wqkv": (192, 64), "mixer.out_proj": (64, 64), "mlp.fc1": (256, 64), "mlp.fc2": (64, 256),
        }.items()
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "shapes"),
    [
        ({**LLAMA, "num_hidden_layers": 1}, EAGLE),
        ({**LLAMA, "num_hidden_layers": 1}, EAGLE3),
        (
            {**SIZES, "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": 5,
             "auto_map": {"AutoModel": "dflash.DFlashDraftModel"}, "tie_word_embeddings": False},
            DFLASH,
        ),
        (
            {**SIZES, "architectures": ["DeepseekV3ForCausalLMNextN"], "model_type": "deepseek_v3",
             "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "num_hidden_layers": 1,
             "num_nextn_predict_layers": 1},
            NEXTN,
        ),
        (
            {"architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": 64, "vocab_size": 512, "num_heads": 5,
             "num_hidden_layers": 1},
            MEDUSA,
        ),
        (
            {"architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator", "emb_dim": 64, "inner_dim": 128,
             "n_predict": 4, "n_candidates": 5, "top_k_tokens_per_head": [4, 3, 2, 2], "vocab_size": 512},
            MLP_SPECULATOR,
        ),
        (
            {"architectures": ["MixFormerSequentialForCausalLM"], "model_type": "mixformer-sequential", "n_embd": 64,
             "n_layer": 4, "n_head": 4, "vocab_size": 512, "auto_map": {"AutoConfig": "configuration.Config"}},
            PHI_1_5,
        ),
    ],
    ids=["EAGLE", "EAGLE-3", "DFlash", "NextN", "Medusa", "MLP speculator", "Phi-1.5"],
)  # fmt: skip
def test_parts_that_lie_elsewhere_are_not_missing(
    config: dict[str, Any], shapes: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    dtypes = {"d2t": "I64", "t2d": "BOOL"}
    entries: dict[str, Entry] = {name: (dtypes.get(name, "BF16"), shape) for name, shape in shapes.items()}
    write_checkpoint(Structure("made/up", "", config, []), tmp_path, entries)
    report = ckptcheck.scan(tmp_path, headers_only=True)
    assert [f"{one.code} {one.message}" for one in report.findings if one.severity in ("error", "warning")] == []


def test_a_model_that_kept_only_its_draft_layer_is_not_clean(tmp_path: Path) -> None:
    config = {**LLAMA, "num_hidden_layers": 4, "num_nextn_predict_layers": 1}
    entries: dict[str, Entry] = {name.replace(".0.", ".4."): ("BF16", shape) for name, shape in NEXTN.items()}
    write_checkpoint(Structure("made/up", "", config, []), tmp_path, entries)
    found = ckptcheck.scan(tmp_path, headers_only=True).findings
    assert {one.code for one in found if one.severity == "error"}


@pytest.mark.parametrize(
    ("prefix", "files", "expected"),
    [
        ("", {"modules.json": {}}, []),
        ("", {}, ["warning CFG003"]),
        ("model.", {"modules.json": {}}, ["error CFG003"]),
    ],
)
def test_an_embedder_has_no_head(prefix: str, files: dict[str, Any], expected: list[str], tmp_path: Path) -> None:
    """Qwen3-Embedding-8B has the class of a language model, and the names of one without its head."""
    shapes = number(f"{prefix}layers", 3, {**ATTENTION, **MLP, **NORMS})
    shapes |= {f"{prefix}embed_tokens.weight": (512, 64), f"{prefix}norm.weight": (64,)}
    entries: dict[str, Entry] = {name: ("BF16", shape) for name, shape in shapes.items()}
    write_checkpoint(Structure("made/up", "", {**LLAMA, "num_hidden_layers": 3}, [], files=files), tmp_path, entries)
    found = ckptcheck.scan(tmp_path, headers_only=True).findings
    assert [f"{one.severity} {one.code}" for one in found if one.severity != "info"] == expected
