"""The walk finds the numbers that modules keep on the host, and no flags, addresses or tensors."""

from __future__ import annotations

from types import ModuleType

import pytest

from ckptcheck.live.refit.trial_state import find_moving
from ckptcheck.live.runtime.engines.base import same_number
from ckptcheck.live.runtime.engines.codec import decode_scalars
from ckptcheck.live.runtime.worker.ckptcheck_worker import inventory, tensors

torch = pytest.importorskip("torch")


class Kernel:
    """Stands for an object of an engine that a module computes with."""

    def __init__(self, owner: object) -> None:
        self.bmm1_scale, self.owner, self.itself = 0.25, owner, self


def build_model() -> ModuleType:
    Kernel.__module__ = "vllm.v1.attention.backends.cpu_attn"
    model = torch.nn.Sequential(torch.nn.LayerNorm(2, eps=1e-6), torch.nn.Linear(2, 2))
    norm, linear = model
    norm._k_scale_float, norm.is_causal, norm.num_heads, norm.handle = 0.03, True, 4, 1 << 40
    norm.scales, norm.table, norm.lost = [1.0, 2.0], {"k": 3.0}, float("nan")
    linear.impl, linear._k_scale, linear.nothing, linear.kind = Kernel(linear), torch.ones(1), None, float
    return model


def test_numbers_of_modules_and_of_what_they_compute_with() -> None:
    found = dict(tensors.walk_scalars(build_model(), "draft:"))
    assert {name.removeprefix("draft:"): value for name, value in found.items() if "features" not in name} == {
        "0.eps": 1e-6, "0._k_scale_float": 0.03, "0.num_heads": 4, "0.scales.0": 1.0, "0.scales.1": 2.0, "0.table.k": 3.0,
        "0.lost": pytest.approx(float("nan"), nan_ok=True), "0.normalized_shape.0": 2, "1.impl.bmm1_scale": 0.25,
    }  # fmt: skip


def test_numbers_keep_their_digits_and_their_kind_on_the_way() -> None:
    report = inventory.read_scalars(1, iter([("a", 0.1 + 0.2), ("b", 4), ("c", float("nan"))]))
    decoded = decode_scalars([report])
    assert decoded[1, "a"] == 0.1 + 0.2
    assert type(decoded[1, "b"]) is int
    assert same_number(decoded[1, "c"], float("nan"))


def test_what_a_forward_pass_changes_is_found() -> None:
    before = {(0, "scale"): 1.0, (0, "length"): 4.0, (0, "lost"): float("nan")}
    after = {(0, "scale"): 1.0, (0, "length"): 5.0, (0, "made late"): 2.0, (0, "lost"): float("nan")}
    assert find_moving(before, after) == {(0, "length"), (0, "made late")}
