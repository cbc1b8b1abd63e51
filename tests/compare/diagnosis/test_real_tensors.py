"""The diagnosis of damage to SmolLM2's own tensors, read from its mapped files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.compare.diagnosis import AttentionGeometry, DiagnosisInput, TensorBits, diagnose
from tests.compare.diagnosis.sharded import Weights, to_bits, to_numbers

HEADS, GROUPS, HEAD_DIM, LAYERS = 9, 3, 64, 30


@pytest.fixture(scope="module")
def weights(smollm2: Path) -> Weights:
    ckpt = open_checkpoint(str(smollm2))
    found = {}
    for name, file in ckpt.tensor_to_file.items():
        tensor, shard = ckpt.tensors[name], ckpt.shards[file]
        mapped = np.memmap(smollm2 / file, np.uint8, "r")
        begin, end = (shard.data_start + offset for offset in tensor.data_offsets)
        found[name] = mapped[begin:end].view(np.uint16).reshape(tensor.shape)
    return found


def on(pattern: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Weights], Weights]:
    return lambda weights: {name: change(x) if re.search(pattern, name) else x for name, x in weights.items()}


def numbers(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda bits: to_bits("BF16", change(to_numbers("BF16", bits)))


def interleaved(weights: Weights) -> Weights:
    found = dict(weights)
    for layer in range(LAYERS):
        names = [f"model.layers.{layer}.self_attn.{part}_proj.weight" for part in "qkv"]
        groups = [weights[name].reshape(GROUPS, -1, weights[name].shape[1]) for name in names]
        fused = np.concatenate(groups, axis=1).reshape(-1, weights[names[0]].shape[1])
        cuts = [HEADS * HEAD_DIM, (HEADS + GROUPS) * HEAD_DIM]
        found |= dict(zip(names, np.split(fused, cuts), strict=True))
    return found


def swapped(weights: Weights) -> Weights:
    other = {"gate_proj": "up_proj", "up_proj": "gate_proj"}
    return {name: weights[re.sub(r"gate_proj|up_proj", lambda m: other[m[0]], name)] for name in weights}


def stage_twice(weights: Weights) -> Weights:
    return {name: weights[re.sub(r"layers\.(\d+)", lambda m: f"layers.{int(m[1]) % 15}", name)] for name in weights}


def to_pairs(bits: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(bits.reshape(-1, 2, HEAD_DIM // 2, 576).swapaxes(1, 2)).reshape(bits.shape)


def int4(values: np.ndarray) -> np.ndarray:
    grouped = values.reshape(len(values), -1, 64)
    scale = np.abs(grouped).max(axis=2, keepdims=True) / 7
    return (np.rint(grouped / scale) * scale).reshape(values.shape)


def noise(bits: np.ndarray) -> np.ndarray:
    return numbers(lambda values: values + np.random.default_rng(0).normal(0, 1e-3, values.shape))(bits)


EARLY = r"layers\.[0-3]\..*"
CASES = {
    "equal": (dict, []),
    "interleaved": (interleaved, [("qkv-interleave",)]),
    "swapped": (swapped, [("gate-up-swapped",)]),
    "stage twice": (stage_twice, [("layer",)]),
    "rope": (on(r"[qk]_proj", to_pairs), [("rope-permuted",)]),
    "transposed": (on(EARLY + "o_proj", lambda x: np.ascontiguousarray(x.T)), [("transposed",)]),
    "embedding shifted": (on("embed", lambda x: np.concatenate([x[:100], x[101:], x[:1]])), [("rows-shifted",)]),
    "padded": (on("embed", lambda x: np.concatenate([x, x[:128] * 0])), [("vocabulary-padding",)]),
    "scaled": (on("norm", numbers(lambda values: values * 24)), [("scaled",)]),
    "without 1": (on("norm", numbers(lambda values: values - 1)), [("norm-offset",)]),
    "int4": (on(EARLY + "q_proj", numbers(int4)), [("quantized",)]),
    "half a bucket": (on(EARLY + "down_proj", lambda x: np.r_[x[:99], x[99:] * 0]), [("partial-write",)]),
    "noise": (on(EARLY + "gate_proj", noise), [("unknown",)]),
}


@pytest.mark.xdist_group("smollm2")
@pytest.mark.parametrize(
    "geometry", [AttentionGeometry(HEADS, GROUPS, HEAD_DIM), AttentionGeometry()], ids=["declared", "guessed"]
)
@pytest.mark.parametrize("case", CASES)
def test_damage_is_named(weights: Weights, case: str, geometry: AttentionGeometry) -> None:
    change, causes = CASES[case]
    actual = change(weights)
    sides = DiagnosisInput(
        {name: lambda x=x: TensorBits("BF16", x) for name, x in weights.items()},  # type: ignore[misc]
        {name: lambda x=x: TensorBits("BF16", x) for name, x in actual.items()},  # type: ignore[misc]
        geometry=geometry,
    )
    different = [name for name in weights if actual[name] is not weights[name]]
    verdicts = diagnose(sides, different if case != "equal" else None)
    assert [verdict.causes for verdict in verdicts] == causes
