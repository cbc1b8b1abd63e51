"""Fused matrices in which a rank was merged twice, on the weights of a real model."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter.runner import run_rules
from tests.factories.checkpoint_cases import MEGATRON
from tests.factories.value_cases import copy_with_values, read_raw_values, run_value_rules
from tests.test_rules import RULES, open_with_values

WIDTH, HIDDEN, INNER = 64, 576, 1536
"""Of a head, of the model and of its feed-forward blocks: SmolLM2-135M's."""


Weights = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def weights(smollm2: Path) -> Weights:
    """Two layers of the model, in float32, and the norms that tell it from an untrained one."""
    ckpt = open_checkpoint(str(smollm2))
    return {
        name: (np.frombuffer(read_raw_values(ckpt, name), "<u2").astype("<u4") << 16).view("<f4").reshape(tensor.shape)
        for name, tensor in ckpt.tensors.items()
        if name.startswith(("model.layers.0.", "model.layers.1."))
    }


def layer_weights(weights: Weights, layer: int, *parts: str) -> list[np.ndarray[Any, Any]]:
    return [weights[f"model.layers.{layer}.{part}_proj.weight"] for part in parts]


def interleave_groups(q: Any, k: Any, v: Any, groups: int) -> Any:
    return np.concatenate([part.reshape(groups, -1, HIDDEN) for part in (q, k, v)], axis=1).reshape(-1, HIDDEN)


def repeat_half(matrix: np.ndarray[Any, Any], axis: int = 0) -> np.ndarray[Any, Any]:
    half = np.split(matrix, 2, axis=axis)[0]
    return np.concatenate([half, half], axis=axis)


def build_phi3(weights: Weights, merged: Callable[..., Any]) -> Weights:
    tensors = {}
    for layer in (0, 1):
        q, k, v, gate, up = layer_weights(
            weights, layer, "self_attn.q", "self_attn.k", "self_attn.v", "mlp.gate", "mlp.up"
        )
        tensors[f"model.layers.{layer}.mlp.gate_up_proj.weight"] = np.concatenate([merged(gate), merged(up)])
        q, k, v = q[: 8 * WIDTH], k[: 2 * WIDTH], v[: 2 * WIDTH]  # nine heads are not split among two ranks
        tensors[f"model.layers.{layer}.self_attn.qkv_proj.weight"] = np.concatenate([merged(q), k, v])
    return tensors


def build_neox(weights: Weights, merged: Callable[..., Any]) -> Weights:
    """Queries, keys and values by group, as Megatron, Falcon and GPT-NeoX have them."""
    tensors = {}
    for layer in (0, 1):
        q, k, v = layer_weights(weights, layer, "self_attn.q", "self_attn.k", "self_attn.v")
        q, k, v = q[: 8 * WIDTH], k[: 2 * WIDTH], v[: 2 * WIDTH]
        tensors[f"model.layers.{layer}.self_attn.query_key_value.weight"] = interleave_groups(merged(q), k, v, 2)
    return tensors


def build_stacked_experts(weights: Weights, merged: Callable[..., Any], *, turned: bool) -> Weights:
    """Four experts made of the feed-forward blocks of both layers: [E, 2I, H], or [E, H, 2I]."""
    experts = []
    for layer in (0, 1):
        gate, up = layer_weights(weights, layer, "mlp.gate", "mlp.up")
        experts += [
            np.concatenate([merged(gate[half]), merged(up[half])])
            for half in (slice(INNER // 2), slice(INNER // 2, INNER))
        ]
    stack = np.stack(experts)
    return {"model.layers.0.mlp.experts.gate_up_proj": stack.transpose(0, 2, 1).copy() if turned else stack}


MERGED = "one tensor-parallel rank seems to be merged twice"


FORMS: dict[str, tuple[Callable[..., Weights], list[str]]] = {
    "phi3": (build_phi3, ["gate and up rows", "query rows"]),
    "neox": (build_neox, ["query rows"]),
    "experts": (lambda *arguments: build_stacked_experts(*arguments, turned=False), ["gate and up rows per expert"]),
    "experts, outputs last": (
        lambda *arguments: build_stacked_experts(*arguments, turned=True),
        ["gate and up rows per expert"],
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("damaged", [False, True], ids=["sound", "rank 0 twice"])
def test_a_rank_merged_twice_within_a_fused_matrix(weights: Weights, tmp_path: Path, form: str, damaged: bool) -> None:
    make, kinds = FORMS[form]
    norms = {name: value for name, value in weights.items() if "norm" in name}
    tensors = make(weights, repeat_half if damaged else lambda matrix: matrix)
    save_file({**tensors, **norms}, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(
        '{"architectures": ["OwnForCausalLM"], "hidden_size": 576, "num_attention_heads": 8, "num_key_value_heads": 2, '
        '"head_dim": 64, "num_hidden_layers": 2}'
    )
    findings = [finding for finding in run_value_rules(tmp_path) if finding.code != "VAL012"]
    subject = {"experts": "1 matrix repeats the first half of its"}.get(
        form[:7], "2 matrices repeat the first half of their"
    )
    assert [(finding.code, finding.message.partition(" (")[0]) for finding in findings] == [
        ("VAL010", f"{subject} {kind}") for kind in (kinds if damaged else [])
    ]


def copy_rows(folder: Path, name: str, begin: int, length: int, to: int) -> None:
    """Write rows of a weight of Megatron over others."""
    run_ = open_with_values(folder)
    assert isinstance(run_, Megatron)
    chunk, place = run_.inspection.located[name][0]
    row = place.nbytes // chunk.sizes[0]
    path = folder / place.name
    raw = bytearray(path.read_bytes())
    at = place.begin + begin * row
    raw[place.begin + to * row : place.begin + (to + length) * row] = raw[at : at + length * row]
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("base", "weight", "rows", "kind"),
    [
        ("legacy-pp2", "mlp.linear_fc1", [(0, 12, 12), (24, 12, 36)], "gate and up rows"),
        ("legacy-pp2", "self_attention.linear_qkv", [(0, 16, 32)], "query rows"),
        ("legacy-pp2", "self_attention.linear_qkv", [(16, 16, 48)], None),  # key and value, perhaps on purpose
        ("legacy-tp2", "self_attention.linear_qkv[0:32]", [(0, 8, 8)], "query rows"),  # a rank's one group of two heads
    ],
)
def test_a_rank_merged_twice_within_a_fused_weight_of_megatron(
    tmp_path: Path, base: str, weight: str, rows: list[tuple[int, int, int]], kind: str | None
) -> None:
    folder = Path(shutil.copytree(MEGATRON / base, tmp_path / "run"))
    name = f"decoder.layers.0.{weight}.weight"
    for begin, length, to in rows:
        copy_rows(folder, f"decoder.layers.0.{weight.partition('[')[0]}.weight", begin, length, to)
    report = run_rules(open_with_values(folder), [rule for rule in RULES if rule.code in ("VAL010", "MEG028")])
    assert [(finding.code, finding.severity, finding.message) for finding in report.findings] == (
        [("VAL010", "error", f"1 matrix repeats the first half of its {kind} ({MERGED}): {name}")] if kind else []
    )


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("axis", [0, 1])
def test_any_share_of_a_real_matrix(smollm2: Path, tmp_path: Path, ranks: int, axis: int) -> None:
    """Two ranks next to each other, and the first and the last; keys have three heads, which are not split among ranks."""
    ckpt, values = open_checkpoint(str(smollm2)), {}
    for layer, (part, (first, second)) in enumerate(
        (part, pair)
        for part in ("self_attn.q", "self_attn.o", "mlp.gate", "mlp.down")
        for pair in ((0, 1), (0, ranks - 1))
    ):
        name = f"model.layers.{layer}.{part}_proj.weight"
        raw = np.frombuffer(read_raw_values(ckpt, name), "<u2").reshape(ckpt.tensors[name].shape).copy()
        shares = np.split(raw, ranks, axis=axis)
        shares[second][:] = shares[first]
        values[name] = raw.tobytes()
    findings = run_value_rules(copy_with_values(smollm2, tmp_path / "model", values))
    assert {finding.code for finding in findings} == {"VAL010"}
    noun, kind = ("rows", "columns")[axis], {4: "quarter", 8: "eighth"}[ranks]
    assert sum(int(finding.message.split()[0]) for finding in findings) == len(values)
    assert all(f"the same {kind} of the {noun} twice" in finding.message for finding in findings)


def test_a_quarter_of_packed_integers(smollm2_w4a16: Path, tmp_path: Path) -> None:
    name = "model.layers.5.mlp.down_proj.weight_packed"
    ckpt = open_checkpoint(str(smollm2_w4a16))
    raw = np.frombuffer(read_raw_values(ckpt, name), "<u4").reshape(ckpt.tensors[name].shape).copy()
    shares = np.split(raw, 4, axis=1)
    shares[3][:] = shares[1]
    assert run_value_rules(smollm2_w4a16) == []
    (finding,) = run_value_rules(copy_with_values(smollm2_w4a16, tmp_path / "model", {name: raw.tobytes()}))
    assert (finding.code, finding.key) == ("VAL010", name)
    assert "the same quarter of the columns twice" in finding.message


@pytest.mark.slow
@pytest.mark.xdist_group("smollm2")
@pytest.mark.parametrize(("layers", "reported"), [([12], 1), ([0, 7, 29], 3), (range(30), 0)])
@pytest.mark.parametrize("module", ["k_proj", "v_proj"])
def test_one_head_in_place_of_all(
    smollm2: Path, tmp_path: Path, module: str, layers: Iterable[int], reported: int
) -> None:
    """In every layer they are the heads of a model with a single one, repeated for three ranks."""
    ckpt, values = open_checkpoint(str(smollm2)), {}
    for layer in layers:
        name = f"model.layers.{layer}.self_attn.{module}.weight"
        heads = np.frombuffer(read_raw_values(ckpt, name), "<u2").reshape(3, 64 * 576)
        values[name] = np.repeat(heads[:1], 3, axis=0).tobytes()
    findings = run_value_rules(copy_with_values(smollm2, tmp_path / "copy", values))
    assert {(finding.code, finding.severity, finding.key) for finding in findings} == (
        {("VAL010", "warning", name) for name in values} if reported else set()
    )
    assert len(findings) == reported
