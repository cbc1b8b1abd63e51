"""A cause that explains all but one element explains nothing: it is not named."""

from __future__ import annotations

import numpy as np
import pytest

from ckptcheck.compare.diagnosis import DiagnosisInput, TensorBits, diagnose
from tests.compare.diagnosis.fault_matrix import sides_of, sync_of
from tests.compare.diagnosis.faults import FAULTS, Sync
from tests.compare.diagnosis.sharded import Layout, Weights, to_bits, to_numbers

LAYOUT = Layout(tp=2, pp=2)
EXACT = (
    "stale", "layers equal the stage before", "transposed (same shape kept)", "QKV interleave not undone", "gate and up swapped",
    "TP: fc1 concatenated plainly", "TP: ranks in another order", "TP: shard duplicated", "rope: halves as pairs",
    "rope: pairs as halves", "rows shifted", "scaled by 1/8", "scaled by sqrt(hidden)", "round trip e4m3", "sign",
    "norm without its 1",
)  # fmt: skip


def spoiled(tensor: np.ndarray, seed: int) -> np.ndarray:
    """Change one element by a bit of its significand."""
    found = tensor.copy()
    flat = found.reshape(-1)
    flat[np.random.default_rng(seed).integers(len(flat))] ^= 1 << 5
    return found


@pytest.mark.parametrize("name", EXACT)
def test_one_element_more(name: str) -> None:
    sync = sync_of(LAYOUT)
    fault = next(fault for fault in FAULTS if fault.name == name)
    damaged = fault.apply(sync)
    actual: Weights = {}
    for number, (key, tensor) in enumerate(damaged.items()):
        same = np.array_equal(tensor, sync.new[key])
        actual[key] = tensor if same else spoiled(tensor, number)
    verdicts = diagnose(sides_of(sync.new, actual, LAYOUT, sync.old if fault.stale else None))
    assert [verdict.causes for verdict in verdicts] == [("unknown",)], name


def _of(expected: np.ndarray, actual: np.ndarray) -> list[tuple[str, ...]]:
    name = "model.layers.0.self_attn.o_proj.weight"
    sides = DiagnosisInput({name: lambda: TensorBits("BF16", expected)}, {name: lambda: TensorBits("BF16", actual)})
    return [verdict.causes for verdict in diagnose(sides)]


def test_rows_that_are_mostly_new_are_not_shifted() -> None:
    random = np.random.default_rng(0)
    expected, other = (to_bits("BF16", random.normal(0, 1, (64, 32))) for _ in range(2))
    assert _of(expected, np.concatenate([expected[4:], other[:4]])) == [("rows-shifted",)]
    assert _of(expected, np.concatenate([expected[40:], other[:40]])) == [("unknown",)]


def test_codes_whose_scales_a_search_chose() -> None:
    random = np.random.default_rng(0)
    expected = random.normal(0, 1, (64, 64))
    scales = np.abs(expected).max(1, keepdims=True) / 7 * random.uniform(0.8, 1, (64, 1))
    codes = np.rint(expected / scales).clip(-8, 7)
    assert _of(to_bits("BF16", expected), to_bits("BF16", codes)) == [("codes",)]
    other = np.roll(codes, 7, axis=1) * random.choice([-1, 1], codes.shape)
    assert _of(to_bits("BF16", codes), to_bits("BF16", other.clip(-8, 7))) == [("unknown",)]


def test_a_factor_must_hold_beyond_the_sample() -> None:
    expected = to_bits("BF16", np.random.default_rng(0).normal(0, 1, (512, 512)))
    actual = to_bits("BF16", to_numbers("BF16", expected) * 3)
    assert _of(expected, actual) == [("scaled",)]
    actual[123, 45] ^= 1
    assert _of(expected, actual) == [("unknown",)]


def test_minus_zero_is_not_a_factor() -> None:
    expected = to_bits("BF16", np.random.default_rng(0).normal(0, 1, (64, 32)))
    expected[::3, ::2] = 0
    actual = expected.copy()
    actual[actual == 0] = 0x8000
    assert _of(expected, actual) == [("unknown",)]


def test_a_sync_is_made_of_two_versions() -> None:
    """What the other tests rely on: the version before differs in every tensor."""
    sync = Sync.of(LAYOUT)
    assert not any(np.array_equal(sync.new[name], sync.old[name]) for name in sync.new)
