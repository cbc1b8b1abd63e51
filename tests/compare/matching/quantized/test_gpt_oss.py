"""gpt-oss in MXFP4, as it is released, against the dense model in the forms of transformers and Megatron; and NVFP4 of ModelOpt."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import packers
import pytest
import quantized

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.open_side import open_side
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules

torch = pytest.importorskip("torch", reason="pip install torch")
mxfp4 = pytest.importorskip("transformers.integrations.mxfp4", reason="pip install 'ckptcheck[fixtures]'")
load_file, save_file = (getattr(pytest.importorskip("safetensors.torch"), name) for name in ("load_file", "save_file"))
RULES = [rule for rule in rule_loader.load_rules() if rule.on == "comparison"]
EXPERTS = "model.layers.1.mlp.experts"
LAYERS, NUMBER = 2, 4
Tensors = dict[str, Any]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`packed`, as released; `dense`, what transformers would load of it; `before`, the bf16 model that was quantized."""
    folder = tmp_path_factory.mktemp("gpt-oss")
    quantized.gpt_oss(folder / "packed")
    config = json.loads((folder / "packed/config.json").read_text())
    del config["quantization_config"]
    tensors = load_file(folder / "packed/model.safetensors")
    dense = {name: value for name, value in tensors.items() if not name.endswith(("_blocks", "_scales"))}
    before = dict(dense)
    for name in [name.removesuffix("_blocks") for name in tensors if name.endswith("_blocks")]:
        dense[name] = mxfp4.convert_moe_packed_tensors(tensors[f"{name}_blocks"], tensors[f"{name}_scales"])
        noise = torch.rand(dense[name].shape, generator=torch.Generator().manual_seed(len(name))) - 0.5
        small = dense[name].float().abs().reshape(NUMBER, -1).amax(1).reshape(NUMBER, 1, 1) / 24
        before[name] = (dense[name].float() + noise * small).to(torch.bfloat16)
    for kind, values in (("dense", dense), ("before", before)):
        (folder / kind).mkdir()
        (folder / kind / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
        save_file(values, folder / kind / "model.safetensors", {"format": "pt"})
    quantize(folder / "before", folder / "rounded", folder / "packed/config.json")
    return folder


OTHER_STEP = ", unless the dense one is of another step than the quantized one"


def quantize(source: Path, target: Path, config: Path) -> None:
    """Round the experts of a dense model to MXFP4."""
    target.mkdir()
    shutil.copy(config, target / "config.json")
    tensors = load_file(source / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        codes, scales = packers.mxfp4(tensors.pop(name).float().numpy().transpose(0, 2, 1))
        tensors[f"{name}_blocks"] = torch.from_numpy(np.ascontiguousarray(codes).reshape(*scales.shape, 16))
        tensors[f"{name}_scales"] = torch.from_numpy(np.ascontiguousarray(scales))
    save_file(tensors, target / "model.safetensors", {"format": "pt"})


def diff(first: Path, second: Path) -> tuple[Report, Comparison]:
    seen = Comparison(open_side(str(first)), open_side(str(second)))
    return run_rules(seen, RULES), seen


def edited(source: Path, target: Path, change: Callable[[Tensors], None]) -> Path:
    shutil.copytree(source, target)
    tensors = load_file(source / "model.safetensors")
    change(tensors)
    save_file(
        {name: value.contiguous() for name, value in tensors.items()}, target / "model.safetensors", {"format": "pt"}
    )
    return target


def test_what_transformers_makes_of_it_is_what_it_stands_for(models: Path) -> None:
    report, seen = diff(models / "packed", models / "dense")
    assert report.verdict == "clean", [finding.message for finding in report.findings]
    assert f"{LAYERS * NUMBER * 3} quantized, held to half a step" in seen.subject
    assert sum(near.elements for _, near, _ in seen.value_differences.quantized) == LAYERS * NUMBER * 3 * 128 * 256
    assert not any(near.largest for _, near, _ in seen.value_differences.quantized)  # the very numbers, bit for bit
    report, _ = diff(models / "packed", models / "before")
    assert {finding.code for finding in report.findings} == {"CMP007"}


def test_the_nearest_numbers_are_within_half_a_step(models: Path) -> None:
    report, seen = diff(models / "before", models / "rounded")
    assert report.verdict == "clean", [finding.message for finding in report.findings]
    assert all(near.rms > 0.1 for _, near, _ in seen.value_differences.quantized)


def one_number(tensors: Tensors) -> None:
    tensors[f"{EXPERTS}.down_proj_blocks"][2, 5, 1, 7] ^= 0x01


def neighbours_scale(tensors: Tensors) -> None:
    scales = tensors[f"{EXPERTS}.down_proj_scales"]
    scales[2, 5] = scales[2, 5].roll(1)
    scales[2, 5, 0] += 1


def swapped(tensors: Tensors) -> None:
    for kind in ("blocks", "scales"):
        for layer in range(LAYERS):
            name = f"model.layers.{layer}.mlp.experts.gate_up_proj_{kind}"
            value = tensors[name]
            tensors[name] = value.unflatten(1, (-1, 2)).flip(2).reshape(value.shape)


def permuted(tensors: Tensors) -> None:
    for part in ("gate_up_proj", "down_proj"):
        for kind in ("blocks", "scales"):
            tensors[f"{EXPERTS}.{part}_{kind}"] = tensors[f"{EXPERTS}.{part}_{kind}"][[0, 3, 2, 1]]


def layers_exchanged(tensors: Tensors) -> None:
    other = EXPERTS.replace("layers.1", "layers.0")
    for kind in ("blocks", "scales"):
        of, to = f"{EXPERTS}.down_proj_{kind}", f"{other}.down_proj_{kind}"
        tensors[of], tensors[to] = tensors[to], tensors[of]


def halves_not_alternating(tensors: Tensors) -> None:
    """Gate above up, as most families have them."""
    for kind in ("blocks", "scales"):
        value = tensors[f"{EXPERTS}.gate_up_proj_{kind}"]
        tensors[f"{EXPERTS}.gate_up_proj_{kind}"] = torch.cat([value[:, ::2], value[:, 1::2]], 1)


@pytest.mark.parametrize(("change", "code", "said"), [
    (one_number, "CMP009", "1 of 32,768 numbers are farther than rounding explains"),
    (neighbours_scale, "CMP009", f"1 quantized weight is not rounded to the nearest numbers: {EXPERTS}.2.down_proj.weight"),
    (swapped, "CMP007", "16 hold other tensors: gate and up are swapped"),
    (permuted, "CMP007", "6 hold other tensors: experts are in other places: 1 is 3, 3 is 1"),
    (layers_exchanged, "CMP007", "8 hold other tensors: layers are in other places: 0 is 1, 1 is 0"),
    (halves_not_alternating, "CMP007", f"in 8 tensors: {EXPERTS}"),
], ids=lambda value: getattr(value, "__name__", ""))  # fmt: skip
def test_a_fault_is_seen_and_named(
    change: Callable[[Tensors], None], code: str, said: str, models: Path, tmp_path: Path
) -> None:
    report, _ = diff(models / "before", edited(models / "rounded", tmp_path / "wrong", change))
    assert [finding.code for finding in report.findings] == [code]
    (found,) = report.findings
    assert said in found.message
    far = r".* [0-9.]+ steps of the grid apart on average, [0-9.e+]+ at most \([0-9.]+\), where rounding explains 0\.5(; .*)?"
    if code == "CMP007":
        assert re.fullmatch("the quantized weight does not hold the values of the dense one in " + far, found.message)
        assert found.hint == f"quantize again from the dense checkpoint{OTHER_STEP}"
    else:
        assert re.fullmatch(r".* are farther than rounding explains, [0-9.]+ steps at most", found.message)
    report, _ = diff(edited(models / "packed", tmp_path / "source", change), models / "dense")
    (found,) = report.findings
    assert found.code == "CMP007"  # the dense one has to be what is stored, rounded once
    assert re.fullmatch("the dense weight does not equal the dequantized one in " + far, found.message)
    assert found.hint == f"dequantize again{OTHER_STEP}"


def test_the_gap_that_counts_is_that_on_the_side_of_the_dense_number(models: Path, tmp_path: Path) -> None:
    """2 stands between gaps of a half and of one: what is a little less than 1.75 is not rounded to it."""
    name = f"{EXPERTS}.down_proj"
    tensors = load_file(models / "rounded/model.safetensors")
    weights = load_file(models / "before/model.safetensors")[name].mT.float().numpy()
    codes, scales = (tensors[f"{name}_{kind}"].numpy() for kind in ("blocks", "scales"))
    scaled = weights.reshape(*scales.shape, 32) / 2.0 ** (scales[..., None].astype(np.float32) - 127)
    place = tuple(np.argwhere((scaled[..., ::2] > 1.6) & (scaled[..., ::2] < 1.7) & (codes & 15 == 3))[0])

    def one_up(tensors: Tensors) -> None:
        tensors[f"{name}_blocks"][place] += 1

    report, _ = diff(models / "before", edited(models / "rounded", tmp_path / "wrong", one_up))
    assert [finding.code for finding in report.findings] == ["CMP009"]
    assert "1 of 32,768 numbers are farther than rounding explains" in report.findings[0].message


def test_what_is_nearly_its_own_stands_for_no_other(models: Path, tmp_path: Path) -> None:
    """Experts 0 and 1 are one and the same; the dense form of 1 is a little off."""

    def alike(tensors: Tensors) -> None:
        for kind in ("_blocks", "_scales", ""):
            if (value := tensors.get(f"{EXPERTS}.down_proj{kind}")) is not None:
                value[1] = value[0]
                if not kind:
                    value[1] += value[0].float().std() / 8 * torch.randn(value[1].shape).sign()

    report, _ = diff(*(edited(models / kind, tmp_path / kind, alike) for kind in ("packed", "dense")))
    assert [finding.code for finding in report.findings] == ["CMP007"]
    assert "in 1 tensor: " in report.findings[0].message
    assert "holds another tensor" not in report.findings[0].message


@pytest.mark.parametrize("pattern", [255, 254, 0])
def test_scales_that_are_no_numbers_or_too_large_are_no_rounding(pattern: int, models: Path, tmp_path: Path) -> None:
    def damage(tensors: Tensors) -> None:
        tensors[f"{EXPERTS}.down_proj_scales"][1, 4, 0] = pattern

    for pair in ((models / "before", "rounded"), (models / "dense", "packed")):
        report, _ = diff(pair[0], edited(models / pair[1], tmp_path / pair[1], damage))
        assert [finding.code for finding in report.findings] == ["CMP007"]


@pytest.mark.parametrize("name", ["gate_up_proj_scales", "gate_up_proj_blocks"])
def test_parts_that_do_not_fit_are_not_compared(name: str, models: Path, tmp_path: Path) -> None:
    def shorten(tensors: Tensors) -> None:
        tensors[f"{EXPERTS}.{name}"] = tensors[f"{EXPERTS}.{name}"][:, :-2]

    report, _ = diff(models / "before", edited(models / "rounded", tmp_path / "short", shorten))
    assert report.exit_code("error") == 2
    assert any(
        "quantized by mxfp4, weight_blocks U8, a format that diff does not dequantize" in why
        for _, why in report.crashed
    )


def test_a_family_without_a_table_is_not_compared(models: Path, tmp_path: Path) -> None:
    for kind in ("before", "rounded"):
        shutil.copytree(models / kind, tmp_path / kind)
        config = json.loads((tmp_path / kind / "config.json").read_text())
        (tmp_path / kind / "config.json").write_text(json.dumps(config | {"model_type": "another"}))
    report, _ = diff(tmp_path / "before", tmp_path / "rounded")
    assert report.exit_code("error") == 2
    assert any(
        "quantized experts stacked in one tensor, of a family without a table" in why for _, why in report.crashed
    )


def test_what_transformers_saves_of_the_dequantized_model_is_no_such_model(models: Path, tmp_path: Path) -> None:
    """5.23 saves the dense experts under the names of blocks, and looks for their own when it loads them again."""
    import transformers

    made, _ = transformers.AutoModelForCausalLM.from_pretrained(
        models / "packed", quantization_config=transformers.Mxfp4Config(dequantize=True), output_loading_info=True
    )
    made.save_pretrained(tmp_path / "saved")
    _, told = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved", output_loading_info=True)
    missing = {name for name in told["missing_keys"] if "experts" in name}
    rules = [rule for rule in rule_loader.load_rules() if rule.code == "QNT005"]
    found = run_rules(open_checkpoint(str(tmp_path / "saved")), rules).findings
    assert [finding.code for finding in found] == (["QNT005"] if missing else [])
    report, _ = diff(models / "packed", tmp_path / "saved")
    assert [finding.code for finding in report.findings] == (["CMP001", "CMP001"] if missing else [])


def megatron(models: Path, folder: Path) -> Path:
    """The dense model under Megatron's names: queries, keys and values by groups, gate above up, outputs before inputs."""
    from torch.distributed.checkpoint import FileSystemWriter, save

    tensors = load_file(models / "dense/model.safetensors")
    config = json.loads((models / "dense/config.json").read_text())
    groups, width = config["num_key_value_heads"], config["head_dim"]
    found = {
        "embedding.word_embeddings.weight": tensors["model.embed_tokens.weight"],
        "decoder.final_layernorm.weight": tensors["model.norm.weight"],
        "output_layer.weight": tensors["lm_head.weight"],
    }
    for layer in range(LAYERS):
        of, to = f"model.layers.{layer}", f"decoder.layers.{layer}"
        for kind in ("weight", "bias"):
            parts = [tensors[f"{of}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
            mixed = [part.reshape(groups, -1, width, *part.shape[1:]) for part in parts]
            found[f"{to}.self_attention.linear_qkv.{kind}"] = torch.cat(mixed, 1).reshape(-1, *parts[0].shape[1:])
            found[f"{to}.self_attention.linear_proj.{kind}"] = tensors[f"{of}.self_attn.o_proj.{kind}"]
            found[f"{to}.mlp.router.{kind}"] = tensors[f"{of}.mlp.router.{kind}"]
            ending = "" if kind == "weight" else "_bias"
            for expert in range(NUMBER):
                fused = tensors[f"{of}.mlp.experts.gate_up_proj{ending}"][expert]
                down = tensors[f"{of}.mlp.experts.down_proj{ending}"][expert]
                at = f"{to}.mlp.experts.local_experts.{expert}"
                found[f"{at}.linear_fc1.{kind}"] = (
                    torch.cat([fused[..., ::2], fused[..., 1::2]], -1).mT.contiguous()
                    if kind == "weight"
                    else torch.cat([fused[::2], fused[1::2]])
                )
                found[f"{at}.linear_fc2.{kind}"] = down.mT.contiguous() if kind == "weight" else down
        found[f"{to}.self_attention.core_attention.softmax_offset"] = tensors[f"{of}.self_attn.sinks"]
        found[f"{to}.input_layernorm.weight"] = tensors[f"{of}.input_layernorm.weight"]
        found[f"{to}.pre_mlp_layernorm.weight"] = tensors[f"{of}.post_attention_layernorm.weight"]
    with pytest.warns(UserWarning, match="single process"):
        save({name: value.clone() for name, value in found.items()}, storage_writer=FileSystemWriter(folder))
    return folder


def test_the_same_under_megatrons_names(models: Path, tmp_path: Path) -> None:
    trained = megatron(models, tmp_path / "megatron")
    for pair in ((models / "packed", trained), (trained, models / "packed")):
        report, seen = diff(*pair)
        assert report.verdict == "clean", [finding.message for finding in report.findings]
        assert "0 missing · 0 extra" in seen.subject
        assert f"{LAYERS * NUMBER * 3} quantized, held to half a step" in seen.subject
    report, _ = diff(trained, edited(models / "packed", tmp_path / "wrong", swapped))
    assert [finding.code for finding in report.findings] == ["CMP007"]
    assert "gate and up are swapped" in report.findings[0].message


def modelopt(path: Path, weight: np.ndarray[Any, Any], *, quantize: bool, other: bool = False) -> Path:
    path.mkdir()
    name = "model.layers.0.mlp.up_proj"
    config: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16"}
    tensors: packers.Stored = {f"{name}.weight": ("BF16", packers.bf16(weight))}
    if quantize:
        config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": []}
        parts = packers.nvfp4(weight, modelopt=True)
        if other:  # a divisor, as in compressed-tensors
            parts["weight_scale_2"] = ("F32", 1 / parts["weight_scale_2"][1])
        tensors = {f"{name}.{role}": value for role, value in parts.items()}
    (path / "config.json").write_text(json.dumps(config))
    packers.write(path / "model.safetensors", tensors)
    return path


def test_nvfp4_of_modelopt(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((48, 96), dtype=np.float32) / 8
    values[:, ::3] *= np.float32(1e-3)
    values[8:] *= np.geomspace(1e-4, 1e-6, 40, dtype=np.float32)[:, None]  # the fp8 scales have few bits left, or none
    weight = packers.from_bf16(packers.bf16(values))
    dense = modelopt(tmp_path / "dense", weight, quantize=False)
    good = modelopt(tmp_path / "good", weight, quantize=True)
    report, seen = diff(dense, good)
    assert report.verdict == "clean", [finding.message for finding in report.findings]
    assert seen.value_differences.quantized[0][1].elements == weight.size
    report, _ = diff(dense, modelopt(tmp_path / "divided", weight, quantize=True, other=True))
    assert [finding.code for finding in report.findings] == ["CMP007"]
