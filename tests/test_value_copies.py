"""Copies where something of its own belongs, on the real numbers of a model: halves of fused matrices, matrices, layers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cases import MEGATRON
from safetensors.numpy import save_file
from test_rules import RULES, opened
from test_value_damage import LAYER, findings, raw_values, rewritten

from ckptcheck.checkpoint.megatron.reading import Located
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.megatron.tensor import Chunk
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.run import run

WIDTH, HIDDEN, INNER = 64, 576, 1536
"""Of a head, of the model and of its feed-forward blocks: SmolLM2-135M's."""
Weights = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def weights(smollm2: Path) -> Weights:
    """Two layers of the model, in float32, and the norms that tell it from an untrained one."""
    ckpt = open_checkpoint(str(smollm2))
    return {
        name: (np.frombuffer(raw_values(ckpt, name), "<u2").astype("<u4") << 16).view("<f4").reshape(tensor.shape)
        for name, tensor in ckpt.tensors.items()
        if name.startswith(("model.layers.0.", "model.layers.1."))
    }


def plain(weights: Weights, layer: int, *parts: str) -> list[np.ndarray[Any, Any]]:
    return [weights[f"model.layers.{layer}.{part}_proj.weight"] for part in parts]


def by_group(q: Any, k: Any, v: Any, groups: int) -> Any:
    return np.concatenate([part.reshape(groups, -1, HIDDEN) for part in (q, k, v)], axis=1).reshape(-1, HIDDEN)


def twice(matrix: np.ndarray[Any, Any], axis: int = 0) -> np.ndarray[Any, Any]:
    half = np.split(matrix, 2, axis=axis)[0]
    return np.concatenate([half, half], axis=axis)


def phi3(weights: Weights, merged: Callable[..., Any]) -> Weights:
    found = {}
    for layer in (0, 1):
        q, k, v, gate, up = plain(weights, layer, "self_attn.q", "self_attn.k", "self_attn.v", "mlp.gate", "mlp.up")
        found[f"model.layers.{layer}.mlp.gate_up_proj.weight"] = np.concatenate([merged(gate), merged(up)])
        q, k, v = q[: 8 * WIDTH], k[: 2 * WIDTH], v[: 2 * WIDTH]  # nine heads are not split among two ranks
        found[f"model.layers.{layer}.self_attn.qkv_proj.weight"] = np.concatenate([merged(q), k, v])
    return found


def neox(weights: Weights, merged: Callable[..., Any]) -> Weights:
    """Queries, keys and values by group, as Megatron, Falcon and GPT-NeoX have them."""
    found = {}
    for layer in (0, 1):
        q, k, v = plain(weights, layer, "self_attn.q", "self_attn.k", "self_attn.v")
        q, k, v = q[: 8 * WIDTH], k[: 2 * WIDTH], v[: 2 * WIDTH]
        found[f"model.layers.{layer}.self_attn.query_key_value.weight"] = by_group(merged(q), k, v, 2)
    return found


def stacked(weights: Weights, merged: Callable[..., Any], *, turned: bool) -> Weights:
    """Four experts made of the feed-forward blocks of both layers: [E, 2I, H], or [E, H, 2I]."""
    experts = []
    for layer in (0, 1):
        gate, up = plain(weights, layer, "mlp.gate", "mlp.up")
        experts += [
            np.concatenate([merged(gate[half]), merged(up[half])])
            for half in (slice(INNER // 2), slice(INNER // 2, INNER))
        ]
    stack = np.stack(experts)
    return {"model.layers.0.mlp.experts.gate_up_proj": stack.transpose(0, 2, 1).copy() if turned else stack}


FORMS: dict[str, tuple[Callable[..., Weights], list[str]]] = {
    "phi3": (phi3, ["gate and up rows", "query rows"]),
    "neox": (neox, ["query rows"]),
    "experts": (lambda *given: stacked(*given, turned=False), ["gate and up rows per expert"]),
    "experts, outputs last": (lambda *given: stacked(*given, turned=True), ["gate and up rows per expert"]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("damaged", [False, True], ids=["sound", "rank 0 twice"])
def test_a_rank_merged_twice_within_a_fused_matrix(weights: Weights, tmp_path: Path, form: str, damaged: bool) -> None:
    make, kinds = FORMS[form]
    norms = {name: value for name, value in weights.items() if "norm" in name}
    made = make(weights, twice if damaged else lambda matrix: matrix)
    save_file({**made, **norms}, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(
        '{"architectures": ["OwnForCausalLM"], "hidden_size": 576, "num_attention_heads": 8, "num_key_value_heads": 2, '
        '"head_dim": 64, "num_hidden_layers": 2}'
    )
    found = [finding for finding in findings(tmp_path) if finding.code != "VAL012"]
    number = {"experts": "1 matrix repeats its"}.get(form[:7], "2 matrices repeat their")
    assert [(finding.code, finding.message.partition(", as")[0]) for finding in found] == [
        ("VAL010", f"{number} first half of {kind}") for kind in (kinds if damaged else [])
    ]


def copy_rows(folder: Path, name: str, begin: int, length: int, to: int) -> None:
    """Write rows of a weight of Megatron over others."""
    run_ = opened(folder)
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
    report = run(opened(folder), [rule for rule in RULES if rule.code in ("VAL010", "MEG028")])
    assert [(finding.code, finding.severity, finding.message) for finding in report.findings] == (
        [("VAL010", "error", f"1 matrix repeats its first half of {kind}, as a rank merged twice leaves it: {name}")]
        if kind
        else []
    )


@pytest.mark.parametrize(
    ("name", "sizes", "corners", "seen"),
    [
        ("decoder.layers.0.mlp.linear_fc2.weight", (8, 4), [(0, 0), (0, 4)], True),
        ("decoder.layers.0.mixer.A_log", (8, 4), [(0, 0), (8, 0)], False),  # each row counts from 1: sound
        ("model.layers.0.mlp.experts.down_proj", (1, 8, 4), [(0, 0, 0), (1, 0, 0)], False),  # a copied block: VAL009's
        ("model.layers.0.mlp.experts.down_proj", (1, 8, 4), [(0, 0, 0), (0, 0, 4)], True),
    ],
)
def test_which_chunks_may_not_be_alike(
    name: str, sizes: tuple[int, ...], corners: list[tuple[int, ...]], seen: bool
) -> None:
    """What is an error in an exported checkpoint is one in the run that it comes from."""
    raw = np.random.default_rng(0).normal(size=sizes).astype("<f4").tobytes()
    placed = [
        (Chunk(corner, sizes, None), Located(f"{number}.distcp", 0, len(raw), "F32", sizes, (), True))
        for number, corner in enumerate(corners)
    ]
    source = SimpleNamespace(read=lambda _, begin, length: raw[begin : begin + length])
    seen_run: Any = SimpleNamespace(
        form="torch_dist", weights={name: None}, inspection=SimpleNamespace(located={name: placed}), source=source
    )
    rules = {rule.code: rule for rule in RULES}
    assert len(list(rules["MEG028"].check(seen_run))) == seen
    assert rules["MEG028"].severity == rules["VAL010"].severity == "error"


@pytest.mark.parametrize(
    ("copies", "message"),
    [
        (
            {"12.self_attn.o_proj": "11.self_attn.o_proj"},
            "self_attn.o_proj.weight of layer 12 is that of layer 11 again",
        ),
        (
            {"7.self_attn.v_proj": "7.self_attn.k_proj"},
            "in layer 7 self_attn.v_proj.weight is self_attn.k_proj.weight again",
        ),
        (
            {f"{layer}.mlp.up_proj": f"{layer}.mlp.gate_proj" for layer in range(30)},
            "in layers 0-29 mlp.up_proj.weight is mlp.gate_proj.weight again",
        ),
        (
            {f"20.mlp.{part}_proj": f"19.mlp.{part}_proj" for part in ("gate", "up", "down")},
            "mlp.down_proj.weight, mlp.gate_proj.weight, mlp.up_proj.weight of layer 20 are those of layer 19 again",
        ),
        (
            {f"{layer + 15}.self_attn.q_proj": f"{layer}.self_attn.q_proj" for layer in range(15)},
            "self_attn.q_proj.weight of layers 15-29 is that of layers 0-14 again",
        ),
    ],
    ids=["another layer's", "keys for values", "gate for up", "a feed-forward block", "a stage's queries"],
)
def test_a_matrix_that_is_another_is_named(smollm2: Path, tmp_path: Path, copies: dict[str, str], message: str) -> None:
    ckpt = open_checkpoint(str(smollm2))
    values = {
        f"model.layers.{copy}.weight": raw_values(ckpt, f"model.layers.{original}.weight")
        for copy, original in copies.items()
    }
    found = findings(rewritten(smollm2, tmp_path / "copied", values))
    assert [(finding.code, finding.severity, finding.message) for finding in found] == [
        ("VAL014", "warning", f"{message}, byte for byte")
    ]


def test_a_pipeline_offset_that_was_forgotten_is_one_sentence(smollm2: Path, tmp_path: Path) -> None:
    ckpt = open_checkpoint(str(smollm2))
    values = {}
    for layer in range(15, 30):
        first, own = f"model.layers.{layer - 15}.", f"model.layers.{layer}."
        values |= {
            own + name.removeprefix(first): raw_values(ckpt, name) for name in ckpt.tensors if name.startswith(first)
        }
    found = findings(rewritten(smollm2, tmp_path / "stages", values))
    assert [(finding.code, finding.message) for finding in found] == [
        ("VAL008", "model.layers: layers 15-29 are layers 0-14 again, byte for byte")
    ]


def test_a_rank_lost_of_every_layer_is_said_once_a_shard(smollm2: Path, tmp_path: Path) -> None:
    ckpt, values = open_checkpoint(str(smollm2)), {}
    for layer in range(30):
        name = LAYER.replace("12", str(layer)) + "self_attn.o_proj.weight"
        value = np.frombuffer(raw_values(ckpt, name), "<u2").reshape(576, 576).copy()
        value[:, 288:] = 0
        values[name] = value.tobytes()
    found = findings(rewritten(smollm2, tmp_path / "lost", values))
    assert [finding.code for finding in found] == ["VAL005"] * len({ckpt.holders[name] for name in values})
    assert found[0].message.startswith("columns 288-575 of 576 are zero in every row, and such columns of ")
