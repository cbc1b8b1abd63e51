"""Checkpoints that transformers itself writes of one model: other shards, other dtypes, other layouts, ties and damage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.equality import Tolerance
from ckptcheck.compare.matching.open_side import open_side
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules

torch = pytest.importorskip("torch", reason="pip install torch")
transformers = pytest.importorskip("transformers", reason="pip install 'ckptcheck[fixtures]'")
RULES = [rule for rule in rule_loader.load_rules() if rule.on == "comparison"]
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", SIZES | {"tie_word_embeddings": False}),
    "qwen2": ("Qwen2", SIZES | {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", SIZES | {"head_dim": 8, "tie_word_embeddings": False}),
    "qwen3_moe": ("Qwen3Moe", SIZES | MOE | {"tie_word_embeddings": False}),
    "mixtral": ("Mixtral", SIZES | {"num_local_experts": 4}),
    "gpt_oss": ("GptOss", SIZES | {"num_local_experts": 4, "head_dim": 8}),
}


def model(name: str) -> Any:
    kind, settings = MODELS[name]
    torch.manual_seed(0)
    return getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**settings))


def diff(first: Path, second: Path, **terms: Any) -> tuple[Report, Comparison]:
    critic = terms.pop("critic", False)
    seen = Comparison(open_side(str(first)), open_side(str(second)), Tolerance(**terms), critic)
    return run_rules(seen, RULES), seen


def edit(folder: Path, change: Any) -> Path:
    """Change the tensors of a checkpoint in one file."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name: value.contiguous() for name, value in change(tensors).items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_other_shards_are_the_same_model(name: str, tmp_path: Path) -> None:
    made = model(name)
    made.save_pretrained(tmp_path / "one")
    made.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 3
    report, seen = diff(tmp_path / "one", tmp_path / "many")
    assert report.verdict == "clean"
    assert len(seen.match_result.pairs) == len(seen.first.stored) > 20
    assert all(found.different == 0 for _, _, found in seen.value_differences.different)


def test_a_cast_that_the_config_declares(tmp_path: Path) -> None:
    made = model("qwen3_moe")
    made.save_pretrained(tmp_path / "f32")
    made.to(torch.bfloat16).save_pretrained(tmp_path / "bf16")
    report, seen = diff(tmp_path / "f32", tmp_path / "bf16")
    assert report.verdict == "clean"
    assert "cast F32 → BF16 · bitwise" in seen.subject
    back, _ = diff(tmp_path / "bf16", tmp_path / "f32")  # what was rounded away does not come back
    assert {finding.code for finding in back.findings} == {"CMP005"}
    config = json.loads((tmp_path / "bf16/config.json").read_text())
    (tmp_path / "bf16/config.json").write_text(json.dumps(config | {"dtype": "float32"}))
    assert [finding.code for finding in diff(tmp_path / "f32", tmp_path / "bf16")[0].findings] == ["CMP004"]
    assert diff(tmp_path / "f32", tmp_path / "bf16", cast="BF16")[0].verdict == "clean"
    assert diff(tmp_path / "f32", tmp_path / "bf16", cast="none")[0].findings


@pytest.mark.parametrize(("name", "gate"), [
    ("qwen3_moe", "mlp.experts.{}.gate_proj.weight"), ("mixtral", "block_sparse_moe.experts.{}.w1.weight"),
])  # fmt: skip
def test_experts_one_by_one_and_as_the_model_holds_them(name: str, gate: str, tmp_path: Path) -> None:
    made = model(name)
    made.save_pretrained(tmp_path / "each")
    shutil.copytree(tmp_path / "each", tmp_path / "fused")
    from safetensors.torch import load_file, save_file

    held = {key: value.contiguous() for key, value in made.state_dict().items()}
    assert any(key.endswith("mlp.experts.gate_up_proj") for key in held), "transformers holds experts in one tensor"
    save_file(held, tmp_path / "fused/model.safetensors", {"format": "pt"})
    each = load_file(tmp_path / "each/model.safetensors")
    assert f"model.layers.0.{gate.format(3)}" in each
    for pair in (("each", "fused"), ("fused", "each")):
        report, seen = diff(tmp_path / pair[0], tmp_path / pair[1])
        assert report.verdict == "clean"
        assert seen.match_result.bridged_count >= 3 * 4 * 3
    both = held["model.layers.1.mlp.experts.gate_up_proj"]
    both[2] = both[2].roll(both.shape[1] // 2, 0)
    save_file(held, tmp_path / "fused/model.safetensors", {"format": "pt"})
    report, _ = diff(tmp_path / "each", tmp_path / "fused")
    assert [finding.code for finding in report.findings] == ["CMP005"]
    assert "gate and up are swapped" in report.findings[0].message


def test_a_tied_head_stored_twice_is_an_alias(tmp_path: Path) -> None:
    made = model("qwen2")
    made.save_pretrained(tmp_path / "tied")
    shutil.copytree(tmp_path / "tied", tmp_path / "twice")
    edit(tmp_path / "twice", lambda tensors: tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()})
    for pair in (("tied", "twice"), ("twice", "tied")):
        report, seen = diff(tmp_path / pair[0], tmp_path / pair[1])
        assert report.verdict == "clean"
        assert "1 aliased" in seen.subject
    edit(tmp_path / "twice", lambda tensors: tensors | {"lm_head.weight": tensors["lm_head.weight"] + 1})
    report, _ = diff(tmp_path / "tied", tmp_path / "twice")
    assert [finding.key for finding in report.findings] == ["lm_head.weight"]


def test_gpt_to_critic(tmp_path: Path) -> None:
    made = model("llama")
    made.save_pretrained(tmp_path / "gpt")
    critic = transformers.LlamaForTokenClassification.from_pretrained(tmp_path / "gpt", num_labels=1)
    critic.save_pretrained(tmp_path / "critic")
    report, _ = diff(tmp_path / "gpt", tmp_path / "critic")
    assert [finding.code for finding in report.findings] == ["CMP001", "CMP001"]
    for pair in (("gpt", "critic"), ("critic", "gpt")):
        report, seen = diff(tmp_path / pair[0], tmp_path / pair[1], critic=True)
        assert report.verdict == "clean"
        assert "heads of their own: lm_head.weight, score." in seen.subject
        assert "only the head's tensors are new in the critic: score." in seen.subject
    report, seen = diff(tmp_path / "critic", tmp_path / "critic", critic=True)
    assert "new in the critic" not in seen.subject
    edit(
        tmp_path / "gpt",
        lambda tensors: {key: value + 1 if key == "model.norm.weight" else value for key, value in tensors.items()},
    )
    report, seen = diff(tmp_path / "gpt", tmp_path / "critic", critic=True)
    assert [finding.key for finding in report.findings] == ["model.norm.weight"]
    assert "new in the critic" not in seen.subject
    edit(
        tmp_path / "critic", lambda tensors: {key: value for key, value in tensors.items() if "norm.weight" not in key}
    )
    report, _ = diff(tmp_path / "gpt", tmp_path / "critic", critic=True)
    assert [finding.code for finding in report.findings] == ["CMP001"]


def test_every_damage_to_smollm2_is_seen_and_the_cause_named(smollm2: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    shard = "model-00002-of-00003.safetensors"
    for name, change, said in (
        ("model.layers.14.mlp.gate_proj.weight", lambda value: torch.zeros_like(value), "every element is zero"),
        ("model.layers.14.mlp.down_proj.weight", lambda value: value * 2, "by 2"),
        (
            "model.layers.14.self_attn.q_proj.weight",
            lambda value: value.T.contiguous().reshape(value.shape),
            "transposed",
        ),
    ):
        folder = tmp_path / name
        folder.mkdir()
        for path in smollm2.iterdir():
            (folder / path.name).symlink_to(path.resolve()) if path.suffix != ".safetensors" else None
        for path in smollm2.glob("*.safetensors"):
            shutil.copy(path, folder)
        for path in folder.iterdir():
            if path.is_symlink():
                goal = path.resolve()
                path.unlink()
                shutil.copy(goal, path)
        tensors = load_file(folder / shard)
        tensors[name] = change(tensors[name])
        save_file(tensors, folder / shard, {"format": "pt"})
        report, seen = diff(smollm2, folder)
        assert [finding.code for finding in report.findings] == ["CMP005"]
        assert report.findings[0].key == name
        assert said in report.findings[0].message, report.findings[0].message
        assert len(seen.value_differences.different) == 1
