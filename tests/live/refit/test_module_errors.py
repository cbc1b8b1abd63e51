"""Which side is off, and in which module: from the outputs of modules on three sides."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ckptcheck.live.refit.module_errors import RATIO, measure_module_errors

WIDTH, TOKENS = 64, 32
POINTS = ("model.embed_tokens", "model.layers.0.mlp", "model.layers.1.mlp", "model.norm", "lm_head")
Outputs = dict[str, np.ndarray]


def outputs(seed: int, scale: float = 0.004) -> Outputs:
    """Return what modules put out: always the same, but for rounding. seed: 0 for none."""
    found, draw = {}, np.random.default_rng(seed)
    for number, point in enumerate(POINTS):
        shape = (1 if point == "lm_head" else TOKENS, WIDTH)
        exact = np.random.default_rng(100 + number).standard_normal(shape)
        found[point] = (exact * (1 + (scale * draw.standard_normal(shape) if seed else 0))).astype(np.float32)
    return found


def locate(
    engine: Mapping[str, np.ndarray], trainer: Mapping[str, np.ndarray], dtype: str = "bfloat16"
) -> tuple[str, str]:
    found = measure_module_errors(0, engine, trainer, outputs(0), (dtype, dtype))
    return found.party, found.module


def test_sound_sides_are_quiet_and_a_third_of_the_ratio_is_too() -> None:
    assert locate(outputs(1), outputs(2)) == ("", "")
    assert locate(outputs(1, 0.02), outputs(2, 0.02 / RATIO * 1.2)) == ("", "")
    assert locate(outputs(1, 0.06), outputs(2, 0.004)) == ("engine", "model.embed_tokens")


def test_the_first_module_of_the_side_that_is_off_is_named() -> None:
    off = outputs(1)
    for point in POINTS[2:]:
        off[point] = off[point] * 2
    assert locate(off, outputs(2)) == ("engine", "model.layers.1.mlp")
    assert locate(outputs(2), off) == ("trainer", "model.layers.1.mlp")
    found = measure_module_errors(0, off, outputs(2), outputs(0), ("bfloat16", "bfloat16"))
    assert found.relation.startswith(("2", "1.99"))


def test_tokens_that_go_to_other_experts_do_not_count() -> None:
    rerouted = outputs(1)
    for point in POINTS[1:4]:
        rerouted[point][-4:] *= -1
    rerouted["lm_head"] = -rerouted["lm_head"]  # the last token is one of them
    assert locate(rerouted, outputs(2)) == ("", "")


def test_in_float32_less_is_told() -> None:
    off = outputs(1, 1e-7)
    assert locate(off, outputs(2, 1e-7), "float32") == ("", "")
    off["lm_head"] = off["lm_head"] * 1.001
    assert locate(off, outputs(2, 1e-7), "float32") == ("engine", "lm_head")


def test_sides_of_two_dtypes_are_told_apart_only_beyond_rounding() -> None:
    narrow, wide = outputs(1, 0.02), outputs(2, 1e-7)
    found = measure_module_errors(0, narrow, wide, outputs(0), ("bfloat16", "float32"))
    assert (found.party, found.module) == ("", "")
    narrow["lm_head"] = narrow["lm_head"] * 4
    found = measure_module_errors(0, narrow, wide, outputs(0), ("bfloat16", "float32"))
    assert (found.party, found.module) == ("engine", "lm_head")
