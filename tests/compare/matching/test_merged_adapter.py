"""`diff ADAPTER MERGED --base BASE`, held to what PEFT merges into a real model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ckptcheck
from ckptcheck.errors import CkptcheckError
from tests.conftest import needs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("smollm2"),
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),  # PEFT asks for the old name
]
LAYERS = 30


class Models:
    """A trained model, a LoRA adapter with random numbers as large as training makes them, and the merge of both."""

    def __init__(self, base: Path, folder: Path, dtype: str, strength: float = 0.01, **settings: Any) -> None:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        torch.manual_seed(1)
        self.base, self.adapter, self.merged = folder / "base", folder / "adapter", folder / "merged"
        model = AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, dtype))
        model.save_pretrained(self.base)
        tuned = get_peft_model(model, LoraConfig(**settings))
        for name, parameter in tuned.named_parameters():
            if "lora_" in name and ("_B" in name):
                torch.nn.init.normal_(parameter, std=strength)
        tuned.save_pretrained(self.adapter)
        tuned.merge_and_unload().save_pretrained(self.merged)

    def diff(self, merged: Path | None = None) -> ckptcheck.Report:
        return ckptcheck.diff(self.adapter, merged or self.merged, base=self.base)


@pytest.fixture(scope="module")
def models(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Models:
    needs("torch", "transformers", "peft")
    folder = tmp_path_factory.mktemp("merged")
    return Models(smollm2, folder, "bfloat16", r=8, lora_alpha=16, target_modules=["q_proj", "down_proj"])


@pytest.mark.parametrize(
    ("dtype", "settings"),
    [
        ("float32", {"r": 64, "lora_alpha": 16, "use_rslora": True, "target_modules": ["gate_proj", "k_proj"]}),
        (
            "float16",
            {"r": 4, "lora_alpha": 8, "target_modules": ["o_proj"], "alpha_pattern": {"3.self_attn.o_proj": 32}},
        ),
        ("bfloat16", {"strength": 0.0003, "r": 8, "lora_alpha": 16, "target_modules": ["up_proj"]}),
        ("bfloat16", {"r": 8, "lora_alpha": 8, "target_modules": ["v_proj"], "rank_pattern": {"v_proj": 2}}),
    ],
)
def test_what_peft_merges_is_equal(smollm2: Path, tmp_path: Path, dtype: str, settings: dict[str, Any]) -> None:
    needs("torch", "transformers", "peft")
    report = Models(smollm2, tmp_path, dtype, **settings).diff()
    assert (report.verdict, report.findings, report.skipped) == ("clean", (), ())
    assert "CMP012" in report.passed
    assert f"{tmp_path / 'adapter'} changes" in report.subject


class ExpertModels:
    """A mixture whose experts an adapter changes as parameters, as PEFT merges it; stored whole, and expert by expert."""

    def __init__(self, folder: Path) -> None:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

        torch.manual_seed(1)
        self.folder, self.adapter = folder, folder / "adapter"
        config = Qwen3MoeConfig(
            vocab_size=64, hidden_size=16, intermediate_size=32, moe_intermediate_size=24, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=1, head_dim=8, num_experts=4, num_experts_per_tok=2,
        )  # fmt: skip
        model = Qwen3MoeForCausalLM(config)
        model.save_pretrained(folder / "base")
        tuned = get_peft_model(
            model,
            LoraConfig(
                r=2, lora_alpha=8, target_modules=[],
                target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
            ),
        )  # fmt: skip
        for name, parameter in tuned.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.05)
        tuned.save_pretrained(self.adapter)
        tuned.merge_and_unload().save_pretrained(folder / "merged")
        for name in ("base", "merged"):
            rewrite(folder / name, folder / f"{name}-fused", join_experts)

    def diff(self, merged: str, base: str) -> ckptcheck.Report:
        return ckptcheck.diff(self.adapter, self.folder / merged, base=self.folder / base)


def join_experts(tensors: dict[str, Any]) -> None:
    """Store the experts of each layer in two tensors, as transformers has them in memory."""
    import torch

    for layer in range(2):
        prefix = f"model.layers.{layer}.mlp.experts."
        taken = [
            {part: tensors.pop(f"{prefix}{expert}.{part}_proj.weight") for part in ("gate", "up", "down")}
            for expert in range(4)
        ]
        tensors[f"{prefix}gate_up_proj"] = torch.stack([torch.cat([each["gate"], each["up"]]) for each in taken])
        tensors[f"{prefix}down_proj"] = torch.stack([each["down"] for each in taken])


@pytest.fixture(scope="module")
def expert_models(tmp_path_factory: pytest.TempPathFactory) -> ExpertModels:
    needs("torch", "transformers", "peft")
    return ExpertModels(tmp_path_factory.mktemp("experts"))


@pytest.mark.parametrize("merged", ["merged", "merged-fused"])
@pytest.mark.parametrize("base", ["base", "base-fused"])
def test_what_peft_merges_into_experts_is_equal(expert_models: ExpertModels, merged: str, base: str) -> None:
    report = expert_models.diff(merged, base)
    assert (report.verdict, report.findings, report.skipped) == ("clean", (), ())


@pytest.mark.parametrize("form", ["", "-fused"])
def test_experts_that_a_merge_left_are_named(expert_models: ExpertModels, form: str) -> None:
    (finding,) = expert_models.diff(f"base{form}", f"base{form}").findings
    number = 4 if form else 24
    assert finding.message.startswith(f"the adapter was not merged into any of the {number} weights that it changes: ")


def test_experts_merged_in_another_order_are_named(expert_models: ExpertModels, tmp_path: Path) -> None:
    """A merge that reads lora_B expert by expert (unslothai/unsloth#5410)."""
    import torch
    from safetensors.torch import load_file

    lora = load_file(expert_models.adapter / "adapter_model.safetensors")

    def merge_wrongly(tensors: dict[str, Any]) -> None:
        for layer in range(2):
            inner = f"base_model.model.model.layers.{layer}.mlp.experts."
            for prefix in (f"{inner}base_layer.", inner):
                up, down = lora[f"{prefix}lora_B.weight"], lora[f"{prefix}lora_A.weight"]
                change = torch.einsum("oer,eri->eoi", up.reshape(up.shape[0], 4, 2), down.reshape(4, 2, down.shape[1]))
                name = "gate_up_proj" if change.shape[1:] == (48, 16) else "down_proj"
                tensors[f"model.layers.{layer}.mlp.experts.{name}"] += 4 * change

    merged = rewrite(expert_models.folder / "base-fused", tmp_path / "merged", merge_wrongly)
    (finding,) = ckptcheck.diff(expert_models.adapter, merged, base=expert_models.folder / "base-fused").findings
    assert finding.message.startswith(
        "the adapter was merged into 4 weights with the columns of lora_B of each expert in a row; PEFT lays them out rank by rank"
    )


def rewrite(source: Path, folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Copy a checkpoint and change its tensors."""
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def weight(layer: int, module: str = "self_attn.q_proj") -> str:
    return f"model.layers.{layer}.{module}.weight"


def test_each_faulty_merge_is_named(models: Models, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    base, merged = (load_file(folder / "model.safetensors") for folder in (models.base, models.merged))
    assert models.diff().findings == ()

    def messages(name: str, change: Callable[[dict[str, Any]], None], code: str = "CMP012") -> list[str]:
        report = models.diff(rewrite(models.merged, tmp_path / name, change))
        assert {finding.code for finding in report.findings} == {code}
        return [finding.message for finding in report.findings]

    def half(tensors: dict[str, Any]) -> None:
        for layer in range(15, LAYERS):
            for module in ("self_attn.q_proj", "mlp.down_proj"):
                tensors[weight(layer, module)] = base[weight(layer, module)].clone()

    [message] = messages("half", half)
    assert message == (
        "the adapter was not merged into 30 of 60 weights that it changes: "
        "model.layers.{15-29}.mlp.down_proj.weight, model.layers.{15-29}.self_attn.q_proj.weight"
    )
    assert [finding.message for finding in models.diff(models.base).findings] == [
        "the adapter was not merged into any of the 60 weights that it changes: "
        "model.layers.{0-29}.mlp.down_proj.weight, model.layers.{0-29}.self_attn.q_proj.weight"
    ]

    def twice(tensors: dict[str, Any]) -> None:
        name = weight(7)
        tensors[name] = (2 * merged[name].float() - base[name].float()).to(torch.bfloat16)

    [message] = messages("twice", twice)
    assert message.startswith(
        "the adapter was merged 2 times as strongly as lora_alpha / r says into 1 weight (merged twice): "
    )

    def subtracted(tensors: dict[str, Any]) -> None:
        name = weight(7)
        tensors[name] = (2 * base[name].float() - merged[name].float()).to(torch.bfloat16)

    [message] = messages("subtracted", subtracted)
    assert message.startswith("the adapter was merged -1 times as strongly")

    def noise(tensors: dict[str, Any]) -> None:
        name = weight(7)
        tensors[name] += (torch.randn(tensors[name].shape) * 0.01).to(torch.bfloat16)

    [message] = messages("noise", noise)
    assert message == (f"1 weight differs from the base model by something else than the adapter: {weight(7)}")

    def rows(tensors: dict[str, Any]) -> None:
        name = weight(7)
        tensors[name][:288] = base[name][:288]

    [message] = messages("rows", rows)
    assert message.startswith("1 weight differs from the base model by something else")

    def elsewhere(tensors: dict[str, Any]) -> None:
        tensors["model.norm.weight"] += 1

    [message] = messages("elsewhere", elsewhere, "CMP005")
    assert "model.norm.weight" in message


def test_a_module_that_the_base_lacks_is_named(models: Models, tmp_path: Path) -> None:
    def cut(tensors: dict[str, Any]) -> None:
        for name in [name for name in tensors if ".layers.29." in name]:
            del tensors[name]

    base = rewrite(models.base, tmp_path / "base", cut)
    report = ckptcheck.diff(models.adapter, rewrite(models.merged, tmp_path / "merged", cut), base=base)
    assert [(finding.code, finding.message) for finding in report.findings] == [
        (
            "CMP012",
            "the base model lacks 2 modules that the adapter changes: "
            "model.layers.29.mlp.down_proj, model.layers.29.self_attn.q_proj",
        )
    ]


def test_what_is_not_computed_is_incomplete(models: Models, tmp_path: Path) -> None:
    adapter = Path(shutil.copytree(models.adapter, tmp_path / "adapter"))
    settings = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(settings | {"rank_pattern": {"^.*q_proj$": 8}}))
    with pytest.raises(CkptcheckError, match="does not give r and lora_alpha for it as plain numbers"):
        ckptcheck.diff(adapter, models.merged, base=models.base)
    (adapter / "adapter_config.json").write_text(json.dumps(settings | {"peft_type": "LOHA"}))
    with pytest.raises(CkptcheckError, match="only LoRA is computed"):
        ckptcheck.diff(adapter, models.merged, base=models.base)


def test_an_update_of_nothing_is_incomplete_and_not_passed(smollm2: Path, tmp_path: Path) -> None:
    needs("torch", "transformers", "peft")
    report = Models(smollm2, tmp_path, "bfloat16", 0.0, r=2, lora_alpha=4, target_modules=["k_proj"]).diff()
    assert report.findings == ()
    assert [code for code, _ in report.crashed] == ["CMP012"]
    assert report.crashed[0][1].startswith("the update of 30 weights of 30 vanishes in rounding")


def test_the_base_of_a_whole_model_is_the_version_before_it(models: Models, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    base = load_file(models.base / "model.safetensors")

    def half(tensors: dict[str, Any]) -> None:
        for layer in range(15, LAYERS):
            tensors[weight(layer)] = base[weight(layer)].clone()

    report = ckptcheck.diff(models.merged, rewrite(models.merged, tmp_path / "half", half), base=models.base)
    assert [finding.code for finding in report.findings] == ["CMP005"]
    assert "layers 15-29: still the previous version" in report.findings[0].message
    with pytest.raises(CkptcheckError, match="both name what came before"):
        ckptcheck.diff(models.merged, models.merged, base=models.base, previous=models.base)
