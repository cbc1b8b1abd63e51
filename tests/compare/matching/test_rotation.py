"""Rotations of the residual stream (QuaRot, SpinQuant): what follows the embedding, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcheck.verbs.diff import diff
from tests.compare.matching.test_smoothing import (
    ATTENTION,
    FEED_FORWARD,
    HIDDEN,
    LAYER,
    NORMS,
    Tensors,
    dense,
    found,
    quantize,
    write,
)

HEADS, WORDS = 4, 128
SETTINGS = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS, "hidden_size": HIDDEN}
TABLES = ("model.embed_tokens.weight", "lm_head.weight")


def whole() -> Tensors:
    random = np.random.default_rng(7)
    tables = {name: random.normal(0, 0.05, (WORDS, HIDDEN)).astype(np.float16) for name in TABLES}
    return dense() | tables | {"model.norm.weight": random.uniform(0.5, 1.5, HIDDEN).astype(np.float16)}


def orthogonal(size: int, seed: int) -> Any:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))[0]


def rotate(
    tensors: Tensors, *, keep: str = "", centre: bool = False, heads: bool = False, undo: bool = True
) -> Tensors:
    """Fold the norms and rotate; `keep` is left as it was folded. heads: rotate v and o head by head, o only with `undo`."""
    turn = orthogonal(HIDDEN, 3)
    result = {name: value.astype(np.float64) for name, value in tensors.items()}
    for norm, readers in {**NORMS, "": ()}.items():
        name = f"{LAYER}{norm}.weight" if norm else "model.norm.weight"
        for reader in [f"{LAYER}{one}.weight" for one in readers] or ["lm_head.weight"]:
            result[reader] *= result[name]
        result[name] = np.ones(HIDDEN)
    if centre:
        result[TABLES[0]] -= result[TABLES[0]].mean(1, keepdims=True)
    for name in [*TABLES, *(f"{LAYER}{one}.weight" for one in (*ATTENTION, *FEED_FORWARD))]:
        result[name] = result[name] if name == f"{LAYER}{keep}.weight" else result[name] @ turn
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        if name != keep:
            result[f"{LAYER}{name}.weight"] = turn.T @ result[f"{LAYER}{name}.weight"]
    if heads:
        each = np.kron(np.eye(HEADS), orthogonal(HIDDEN // HEADS, 4))
        values, outputs = f"{LAYER}self_attn.v_proj.weight", f"{LAYER}self_attn.o_proj.weight"
        result[values] = each.T @ result[values]
        result[outputs] = result[outputs] @ each if undo else result[outputs]
    return {name: value.astype(np.float16) for name, value in result.items()}


def quantize_blocks(tensors: Tensors) -> tuple[Tensors, dict[str, Any]]:
    tables = {name: value for name, value in tensors.items() if name in TABLES}
    packed, settings = quantize({name: value for name, value in tensors.items() if name not in TABLES})
    return packed | tables, settings | SETTINGS


def compare(path: Path, rotated: Tensors, *, quantized: bool, settings: dict[str, Any] | None = None) -> Any:
    first = write(path / "dense", whole(), SETTINGS)
    tensors, own = quantize_blocks(rotated) if quantized else (rotated, dict[str, Any](SETTINGS))
    own.setdefault("quantization_config", {}).update(settings or {})
    return diff(first, write(path / "rotated", tensors, own if quantized or settings else SETTINGS))


@pytest.mark.parametrize("quantized", [True, False])
@pytest.mark.parametrize("how", [{}, {"centre": True}, {"heads": True}])
def test_a_rotation_that_all_matrices_follow_is_no_difference(tmp_path: Path, how: Any, quantized: bool) -> None:
    report = compare(tmp_path, rotate(whole(), **how), quantized=quantized)
    assert found(report) == []
    assert "rotated, consistent in 8 of 8 matrices" in report.subject


@pytest.mark.parametrize("quantized", [True, False])
@pytest.mark.parametrize("name", ["self_attn.k_proj", "mlp.down_proj"])
def test_a_matrix_that_does_not_follow_is_named(tmp_path: Path, name: str, quantized: bool) -> None:
    [(code, message)] = found(compare(tmp_path, rotate(whole(), keep=name), quantized=quantized))
    assert code == "CMP005"
    assert message.startswith("7 matrices follow a rotation of the embedding, and 1 matrix not rotated with it: ")
    assert f"{LAYER}{name}.weight" in message


def test_heads_that_the_output_does_not_turn_back(tmp_path: Path) -> None:
    findings = found(compare(tmp_path, rotate(whole(), heads=True, undo=False), quantized=False))
    assert [code for code, _ in findings] == ["CMP005"]
    assert (
        "1 matrix with rotated outputs, which nothing undoes: model.layers.0.self_attn.v_proj.weight" in findings[0][1]
    )


@pytest.mark.parametrize("declared", [True, False])
def test_inputs_that_the_engine_turns(tmp_path: Path, declared: bool) -> None:
    rotated = rotate(whole())
    down = f"{LAYER}mlp.down_proj.weight"
    rotated[down] = (rotated[down].astype(np.float64) @ orthogonal(128, 5)).astype(np.float16)
    settings = {"transform_config": {"config_groups": {"R4": {"type": "hadamard"}}}} if declared else None
    findings = found(compare(tmp_path, rotated, quantized=True, settings=settings))
    assert [code for code, _ in findings] == ([] if declared else ["CMP005"])


def test_channels_in_another_order_are_a_rotation_too(tmp_path: Path) -> None:
    order = np.random.default_rng(6).permutation(HIDDEN)
    tensors = whole()
    readers = [*TABLES, *(f"{LAYER}{one}.weight" for one in (*ATTENTION, *FEED_FORWARD))]
    norms = ["model.norm.weight", *(f"{LAYER}{one}.weight" for one in NORMS)]
    permuted = {
        name: value[..., order] if name in [*readers, *norms] else value[order] for name, value in tensors.items()
    }
    assert found(compare(tmp_path, permuted, quantized=False)) == []


def test_norms_that_were_not_folded_in_do_not_follow(tmp_path: Path) -> None:
    rotated, tensors = rotate(whole()), whole()
    for norm in NORMS:
        rotated[f"{LAYER}{norm}.weight"] = tensors[f"{LAYER}{norm}.weight"]
    [(code, message)] = found(compare(tmp_path, rotated, quantized=False))
    assert code == "CMP005"
    assert "5 matrices not rotated with it" in message


def test_an_embedding_that_alone_is_turned_is_the_fault(tmp_path: Path) -> None:
    tensors = whole()
    tensors[TABLES[0]] = np.ascontiguousarray(tensors[TABLES[0]][:, ::-1])
    [(code, message)] = found(compare(tmp_path, tensors, quantized=False))
    assert code == "CMP005"
    assert TABLES[0] in message
    assert "rotation" not in message


def spoil(tensors: Tensors) -> None:
    tensors["lm_head.weight"][:64] = tensors["lm_head.weight"][64:].copy()


def shuffle(tensors: Tensors) -> None:
    name = f"{LAYER}mlp.up_proj.weight"
    tensors[name] = np.ascontiguousarray(tensors[name][::-1])


@pytest.mark.parametrize("change", [spoil, shuffle])
def test_another_change_beside_the_rotation_is_seen(tmp_path: Path, change: Callable[[Tensors], None]) -> None:
    rotated = rotate(whole())
    change(rotated)
    assert [code for code, _ in found(compare(tmp_path, rotated, quantized=False))] == ["CMP005"]
