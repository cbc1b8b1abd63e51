"""Smoothing (AWQ, SmoothQuant): norms that were divided, and the matrices that must undo it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ckptcheck.linter.report import Report
from ckptcheck.verbs.diff import diff

Tensors = dict[str, Any]
LAYER = "model.layers.0."
ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
FEED_FORWARD = ("mlp.gate_proj", "mlp.up_proj")
NORMS = {"input_layernorm": ATTENTION, "post_attention_layernorm": FEED_FORWARD}
HIDDEN, INNER = 64, 128


def write(path: Path, tensors: Tensors, settings: dict[str, Any] | None = None) -> Path:
    path.mkdir()
    save_file({name: np.ascontiguousarray(value) for name, value in tensors.items()}, path / "model.safetensors")
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float16"} | (settings or {})
    (path / "config.json").write_text(json.dumps(config))
    return path


def dense() -> Tensors:
    random = np.random.default_rng(0)
    shapes = {f"{LAYER}{name}.weight": (HIDDEN, HIDDEN) for name in (*ATTENTION, "self_attn.o_proj")}
    shapes |= {f"{LAYER}{name}.weight": (INNER, HIDDEN) for name in FEED_FORWARD}
    shapes[f"{LAYER}mlp.down_proj.weight"] = (HIDDEN, INNER)
    weights = {name: random.normal(0, 0.05, shape).astype(np.float16) for name, shape in shapes.items()}
    norms = {f"{LAYER}{name}.weight": random.uniform(0.5, 1.5, HIDDEN).astype(np.float16) for name in NORMS}
    return weights | norms


def smooth(tensors: Tensors, spread: float = 3.0, *, offset: float = 0.0, keep: str = "") -> Tensors:
    """Divide norms by scales that span `spread`, and multiply their readers; `keep` is left alone."""
    random = np.random.default_rng(1)
    result = dict(tensors)
    for norm, readers in NORMS.items():
        scales = spread ** (random.random(HIDDEN) - 0.5)
        name = f"{LAYER}{norm}.weight"
        result[name] = ((tensors[name].astype(np.float64) + offset) / scales - offset).astype(np.float16)
        for reader in (f"{LAYER}{one}.weight" for one in readers):
            if reader != f"{LAYER}{keep}.weight":
                result[reader] = (tensors[reader].astype(np.float64) * scales).astype(np.float16)
    return result


def quantize(tensors: Tensors, group: int = 32) -> tuple[Tensors, dict[str, Any]]:
    """Round matrices to 4 bits, one scale for each group, stored as int8 of compressed-tensors."""
    result: Tensors = {}
    for name, value in tensors.items():
        if value.ndim == 1:
            result[name] = value
            continue
        blocks = value.astype(np.float64).reshape(len(value), -1, group)
        scales = (np.abs(blocks).max(-1) / 7).astype(np.float16)
        numbers = np.clip(np.round(blocks / scales[..., None].astype(np.float64)), -8, 7).astype(np.int8)
        result |= {name: numbers.reshape(value.shape), f"{name}_scale": scales}
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": group, "symmetric": True}
    form = {"format": "int-quantized", "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}
    return result, {"quantization_config": {"quant_method": "compressed-tensors", **form}}


def found(report: Report) -> list[tuple[str, str]]:
    assert not report.crashed
    return [(finding.code, finding.message) for finding in report.findings]


@pytest.mark.parametrize("quantized", [True, False])
def test_smoothing_that_is_undone_is_no_difference(tmp_path: Path, quantized: bool) -> None:
    first, smoothed = write(tmp_path / "dense", dense()), smooth(dense())
    second = write(tmp_path / "smoothed", *(quantize(smoothed) if quantized else (smoothed,)))
    for report in (diff(first, second), *([] if quantized else [diff(second, first)])):
        assert found(report) == []
        assert report.verdict == "clean"
        assert "smoothed, consistent in 2 of 2 norms" in report.subject


@pytest.mark.parametrize("quantized", [True, False])
def test_a_reader_that_does_not_undo_it_is_named(tmp_path: Path, quantized: bool) -> None:
    first, smoothed = write(tmp_path / "dense", dense()), smooth(dense(), keep="self_attn.k_proj")
    second = write(tmp_path / "smoothed", *(quantize(smoothed) if quantized else (smoothed,)))
    [(code, message)] = found(diff(first, second))
    assert code == "CMP005"
    assert message.startswith(
        "1 norm was scaled (model.layers.0.input_layernorm.weight), and of the matrices that read it, "
        "model.layers.0.self_attn.k_proj.weight does not undo it"
    )


@pytest.mark.parametrize("quantized", [True, False])
def test_a_norm_that_no_reader_undoes_stays_a_difference(tmp_path: Path, quantized: bool) -> None:
    first, other = write(tmp_path / "dense", dense()), dense()
    name = f"{LAYER}input_layernorm.weight"
    other[name] = smooth(dense())[name]
    second = write(tmp_path / "other", *(quantize(other) if quantized else (other,)))
    [(code, message)] = found(diff(first, second))
    assert code == "CMP005"
    assert name in message
    assert "undo" not in message


@pytest.mark.parametrize("spread", [1.5, 3.0, 10.0])
def test_a_norm_that_is_not_divided_is_named(tmp_path: Path, spread: float) -> None:
    first, smoothed = write(tmp_path / "dense", dense()), smooth(dense(), spread)
    name = f"{LAYER}input_layernorm.weight"
    smoothed[name] = dense()[name]
    second = write(tmp_path / "smoothed", *quantize(smoothed))
    [(code, message)] = found(diff(first, second))
    assert code == "CMP007"
    assert message.startswith(
        f"1 norm is as before ({name}), and all 3 matrices that read it had the columns multiplied by 0."
    )
    assert message.endswith(", ".join(f"{LAYER}{reader}.weight" for reader in sorted(ATTENTION)))


def test_readers_that_are_scaled_in_unlike_ways_blame_no_norm(tmp_path: Path) -> None:
    first, other = write(tmp_path / "dense", dense()), dense()
    random = np.random.default_rng(2)
    for reader in ATTENTION:
        other[f"{LAYER}{reader}.weight"] = (
            dense()[f"{LAYER}{reader}.weight"] * 3.0 ** (random.random(HIDDEN) - 0.5)
        ).astype(np.float16)
    second = write(tmp_path / "other", *quantize(other))
    assert not any("norm" in message for _, message in found(diff(first, second)))


def test_overdone_smoothing_is_named(tmp_path: Path) -> None:
    first = write(tmp_path / "dense", dense())
    second = write(tmp_path / "smoothed", *quantize(smooth(dense(), 25.0)))
    [(code, message)] = found(diff(first, second))
    assert code == "CMP007"
    assert message.startswith(
        "smoothing leaves too few steps of the grid to 5 weights: model.layers.0.mlp.gate_proj.weight"
    )


def scale_outputs(tensors: Tensors, *, undo: bool = True) -> Tensors:
    """Divide the outputs of up and v, and multiply the columns of down and o, as AWQ does."""
    random = np.random.default_rng(2)
    result = dict(tensors)
    for source, reader in (("mlp.up_proj", "mlp.down_proj"), ("self_attn.v_proj", "self_attn.o_proj")):
        names = [f"{LAYER}{name}.weight" for name in (source, reader)]
        scales = 4.0 ** (random.random(len(tensors[names[0]])) - 0.5)
        result[names[0]] = (tensors[names[0]].astype(np.float64) / scales[:, None]).astype(np.float16)
        if undo:
            result[names[1]] = (tensors[names[1]].astype(np.float64) * scales).astype(np.float16)
    return result


@pytest.mark.parametrize("with_norms", [True, False])
@pytest.mark.parametrize("quantized", [True, False])
def test_scaled_outputs_that_the_next_matrix_undoes(tmp_path: Path, quantized: bool, with_norms: bool) -> None:
    first = write(tmp_path / "dense", dense())
    scaled = scale_outputs(smooth(dense()) if with_norms else dense())
    report = diff(first, write(tmp_path / "scaled", *(quantize(scaled) if quantized else (scaled,))))
    assert found(report) == []
    assert "outputs of 2 matrices scaled, and undone" in report.subject


@pytest.mark.parametrize(("quantized", "expected"), [(True, "CMP007"), (False, "CMP005")])
def test_scaled_outputs_that_nothing_undoes(tmp_path: Path, quantized: bool, expected: str) -> None:
    first, scaled = write(tmp_path / "dense", dense()), scale_outputs(dense(), undo=False)
    findings = found(diff(first, write(tmp_path / "scaled", *(quantize(scaled) if quantized else (scaled,)))))
    assert expected in [code for code, _ in findings]
    assert "up_proj" in " ".join(message for _, message in findings)


@pytest.mark.parametrize("quantized", [False, True])
def test_values_that_several_heads_share(quantized: bool, tmp_path: Path) -> None:
    """Of 4 heads two read the same values, so each factor is undone in two blocks of the output's columns."""
    settings = {"num_attention_heads": 4, "num_key_value_heads": 2}
    tensors = dense()
    for name in ("k_proj", "v_proj"):
        tensors[f"{LAYER}self_attn.{name}.weight"] = tensors[f"{LAYER}self_attn.{name}.weight"][: HIDDEN // 2]
    factors = np.exp(np.random.default_rng(2).uniform(-0.5, 0.5, HIDDEN // 2))
    for heads, is_clean in ((factors.reshape(2, 1, -1).repeat(2, 1), True), (np.ones(HIDDEN), False)):
        changed = dict(tensors)
        values, output = f"{LAYER}self_attn.v_proj.weight", f"{LAYER}self_attn.o_proj.weight"
        changed[values] = (tensors[values].astype(np.float64) / factors[:, None]).astype(np.float16)
        changed[output] = (tensors[output].astype(np.float64) * heads.reshape(-1)).astype(np.float16)
        changed, quantization = quantize(changed) if quantized else (changed, {})
        first = write(tmp_path / f"dense-{is_clean}", tensors, settings)
        assert (
            found(diff(first, write(tmp_path / f"changed-{is_clean}", changed, settings | quantization))) == []
        ) is is_clean


def spoil_column(tensors: Tensors) -> None:
    tensors[f"{LAYER}self_attn.q_proj.weight"][:, 5] *= np.float16(1.1)


def spoil_output(tensors: Tensors) -> None:
    tensors[f"{LAYER}self_attn.o_proj.weight"][3, 4] *= np.float16(1.1)


@pytest.mark.parametrize("spoil", [spoil_column, spoil_output])
def test_another_change_beside_smoothing_is_seen(tmp_path: Path, spoil: Callable[[Tensors], None]) -> None:
    first, smoothed = write(tmp_path / "dense", dense()), smooth(dense())
    spoil(smoothed)
    findings = found(diff(first, write(tmp_path / "other", smoothed)))
    assert [code for code, _ in findings] == ["CMP005"] * len(findings) != []


@pytest.mark.parametrize(
    ("family", "offset", "is_clean"), [("gemma", 1.0, True), ("gemma", 0.0, False), ("llama", 1.0, False)]
)
def test_families_that_multiply_by_one_plus_weight(tmp_path: Path, family: str, offset: float, is_clean: bool) -> None:
    first = write(tmp_path / "dense", dense(), {"model_type": family})
    second = write(tmp_path / "smoothed", smooth(dense(), offset=offset), {"model_type": family})
    assert (found(diff(first, second)) == []) is is_clean


def test_without_smoothing_nothing_is_said_of_it(tmp_path: Path) -> None:
    first = write(tmp_path / "dense", dense())
    assert "smoothed" not in diff(first, write(tmp_path / "packed", *quantize(dense()))).subject
    assert "smoothed" not in diff(first, Path(shutil.copytree(first, tmp_path / "copy"))).subject


def test_experts_in_one_parameter_with_biases(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    experts = f"{LAYER}mlp.experts"
    shapes = {"gate_up_proj": (4, 2 * INNER, HIDDEN), "down_proj": (4, HIDDEN, INNER), "down_proj_bias": (4, HIDDEN)}
    weights = {f"{experts}.{name}": random.normal(0, 0.05, shape).astype(np.float16) for name, shape in shapes.items()}
    norm = f"{LAYER}post_attention_layernorm.weight"
    weights |= {norm: np.ones(HIDDEN, np.float16), norm.replace("weight", "bias"): np.ones(HIDDEN, np.float16)}
    scales = 2.0 ** random.integers(-2, 3, HIDDEN)
    smoothed = {**weights, f"{experts}.gate_up_proj": (weights[f"{experts}.gate_up_proj"] * scales).astype(np.float16)}
    for name in (norm, norm.replace("weight", "bias")):
        smoothed[name] = (weights[name] / scales).astype(np.float16)
    assert found(diff(write(tmp_path / "dense", weights), write(tmp_path / "smoothed", smoothed))) == []
