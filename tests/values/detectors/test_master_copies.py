"""Master copies of an optimizer, and the weights that were rounded from them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest


@pytest.mark.parametrize("rounding", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("shape", [(40,), (300, 64), (6, 300, 64)])
def test_a_master_copy_is_what_its_weight_was_rounded_from(rounding: str, shape: tuple[int, ...]) -> None:
    """Also where the weight is BF16 or F16, tiny numbers included; one that was replaced in a third of its rows is another."""
    from ckptcheck.values.detectors.master_copies import is_foreign_master

    values = np.random.default_rng(0).normal(0, 0.02, shape).astype("f4") * np.float32(1e-3 if rounding == "F16" else 1)
    match rounding:
        case "BF16":
            rounded = ((values.view("u4") + np.uint32(0x8000)) >> np.uint32(16)).astype("u2")
        case "F16":
            rounded = values.astype(np.float16)
        case _:
            rounded = values
    stored = {"F32": values, rounding + " weight": rounded}
    run: Any = SimpleNamespace(read=lambda tensor, place: stored[tensor.key][place])
    master: Any = SimpleNamespace(key="F32", dtype="F32", shape=shape)
    weight: Any = SimpleNamespace(key=rounding + " weight", dtype=rounding, shape=shape)
    assert not is_foreign_master(run, master, weight)
    stored["F32"] = values.copy()
    stored["F32"][..., -shape[-1] // 3 :] *= -1
    assert is_foreign_master(run, master, weight)
