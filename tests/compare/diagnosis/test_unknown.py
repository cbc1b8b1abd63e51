"""What nothing explains is unknown; two causes at once are both named."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from ckptcheck.compare.diagnosis import diagnose
from tests.compare.diagnosis.fault_matrix import sides_of, sync_of
from tests.compare.diagnosis.faults import FAULTS, MATRIX, NOISE, SIGN, Sync, numbers, on
from tests.compare.diagnosis.sharded import Exporter, Layout, Weights, shards, to_bits, to_megatron

pytestmark = pytest.mark.slow

LAYOUTS = (Layout(dtype="F32"), Layout(moe=True, tp=2, pp=2, ep=2))
CUT = Layout(tp=2, pp=2, dtype="F32"), Layout(moe=True, tp=2, pp=2, ep=2)


def random_of(tensor: np.ndarray) -> np.random.Generator:
    return np.random.default_rng(tensor.size)


def last_bits(tensor: np.ndarray, _: Sync) -> np.ndarray:
    return tensor ^ random_of(tensor).integers(0, 4, tensor.shape, tensor.dtype)


def shuffled(tensor: np.ndarray, _: Sync) -> np.ndarray:
    flat = tensor.reshape(-1).copy()
    random_of(tensor).shuffle(flat)
    return flat.reshape(tensor.shape)


def some_rows(tensor: np.ndarray, sync: Sync) -> np.ndarray:
    found = tensor.copy()
    found[2:6] = to_bits(sync.layout.dtype, random_of(tensor).normal(0, 0.02, found[2:6].shape))
    return found


def added(scale: float) -> Callable[[np.ndarray, Sync], np.ndarray]:
    return numbers(lambda values: values + random_of(values).normal(0, scale, values.shape).astype(np.float32))


def multiplied(values: np.ndarray) -> np.ndarray:
    return values * (1 + random_of(values).normal(0, 0.02, values.shape).astype(np.float32))


NOISES = {
    "other numbers": NOISE.apply,
    "a little": on(MATRIX, added(1e-3)),
    "relative": on(MATRIX, numbers(multiplied)),
    "last bits": on(MATRIX, last_bits),
    "shuffled": on(MATRIX, shuffled),
    "some rows": on(MATRIX, some_rows),
    "dropout": on(MATRIX, lambda tensor, _: tensor * (random_of(tensor).random(tensor.shape) < 0.7)),
    "on all": on(r".", added(1e-2)),
}
UNRELATED = ("other numbers", "shuffled")


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("noise", NOISES)
def test_noise_is_unknown(noise: str, layout: Layout) -> None:
    sync = sync_of(layout)
    verdicts = diagnose(sides_of(sync.new, NOISES[noise](sync), layout, sync.old))
    assert [verdict.causes for verdict in verdicts] == [("unknown",)]
    assert verdicts[0].confidence == "unknown"
    without = diagnose(sides_of(sync.new, NOISES[noise](sync), layout))
    for evidence in (verdicts[0].evidence, without[0].evidence):
        if noise in UNRELATED:
            assert evidence.startswith("the values are unrelated (cosine 0.0")
        else:
            assert "elements differ" in evidence
            assert "ruled out" in evidence
            assert ("stale, " in evidence) == (evidence == verdicts[0].evidence)


def test_what_was_tried_on_some_only_is_said() -> None:
    """Half of each matrix is there, and half is another model's."""
    draw = np.random.default_rng(0)
    names = [f"model.layers.{layer}.mlp.down_proj.weight" for layer in range(12)]
    one = {name: draw.standard_normal((8, 8)).astype("<f4") for name in names}
    other = {
        name: np.where(draw.random((8, 8)) < 0.5, value, draw.standard_normal((8, 8))) for name, value in one.items()
    }
    bits = [{name: value.astype("<f4").view("<u4") for name, value in side.items()} for side in (one, other)]
    (verdict,) = diagnose(sides_of(*bits, Layout(dtype="F32")))
    assert verdict.evidence.endswith("two causes at once (on 8 of the 12)")


def back_to_front(sync: Sync) -> Callable[[int, int], int]:
    depth = 4 // sync.layout.pp
    return lambda pp, at: (sync.layout.pp - 1 - pp) * depth + at


def then(first: Callable[[Sync], Weights], pattern: str, change: Callable[[np.ndarray, Sync], np.ndarray]):  # type: ignore[no-untyped-def]
    return lambda sync: {
        name: change(tensor, sync) if re.search(pattern, name) else tensor for name, tensor in first(sync).items()
    }


def flipped(tensor: np.ndarray, sync: Sync) -> np.ndarray:
    return tensor ^ tensor.dtype.type(SIGN[sync.layout.dtype])


def old_export(**wrong: object) -> Callable[[Sync], Weights]:
    return lambda sync: Exporter(sync.layout, **wrong).export(shards(to_megatron(sync.old, sync.layout), sync.layout))  # type: ignore[arg-type]


def fault(name: str) -> Callable[[Sync], Weights]:
    return next(fault.apply for fault in FAULTS if fault.name == name)


PAIRS = {
    "interleave and swap, different tensors": (
        lambda sync: sync.export(qkv="skip", fc1="swapped"), {("qkv-interleave",), ("gate-up-swapped",)},
    ),
    "interleave and rank order": (
        lambda sync: sync.export(qkv="skip", tp=[1, 0]), {("qkv-interleave", "tp-order"), ("tp-order",)},
    ),
    "layers and swap": (
        lambda sync: sync.export(layers=back_to_front(sync), fc1="swapped"), {("layer",), ("layer", "gate-up-swapped")},
    ),
    "stale and swapped": (old_export(fc1="swapped"), {("stale",), ("stale", "gate-up-swapped")}),
    "transposed and sign": (
        then(fault("transposed (same shape kept)"), MATRIX, flipped), {("transposed", "sign")},
    ),
    "interleave and scale": (
        then(lambda sync: sync.export(qkv="skip"), r"[qkv]_proj", numbers(lambda values: values / 8)),
        {("qkv-interleave", "scaled")},
    ),
    "rope and scale": (
        then(fault("rope: halves as pairs"), r"[qk]_proj", numbers(lambda values: values * np.float32(0.3))),
        {("rope-permuted", "scaled")},
    ),
    "zero norms and a stale layer": (
        then(fault("stale"), r"layers\.3.*norm", lambda tensor, _: tensor * 0), {("stale",), ("zero",)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("layout", CUT, ids=str)
@pytest.mark.parametrize("pair", PAIRS)
def test_two_causes_are_both_named(pair: str, layout: Layout) -> None:
    sync = sync_of(layout)
    apply, causes = PAIRS[pair]
    verdicts = diagnose(sides_of(sync.new, apply(sync), layout, sync.old))
    assert {verdict.causes for verdict in verdicts} == causes


def test_another_layer_and_another_expert() -> None:
    sync = sync_of(Layout(moe=True, pp=2, ep=2))
    actual = sync.export(layers=back_to_front(sync), experts=lambda ep, at: (1 - ep) * 2 + at)
    verdicts = diagnose(sides_of(sync.new, actual, sync.layout))
    assert {verdict.causes for verdict in verdicts} == {("layer",), ("layer", "expert")}


def test_more_noise_than_patience() -> None:
    """After some unknown tensors of a kind the rest is looked at more quickly, and still nothing is named."""
    layout = Layout(moe=True)
    sync = sync_of(layout)
    actual = on(r"experts.*down_proj", lambda tensor, _: shuffled(tensor, sync))(sync)
    (verdict,) = diagnose(sides_of(sync.new, actual, layout))
    assert verdict.causes == ("unknown",)
    assert len(verdict.tensors) == 16
