"""Ranks that hold some experts whole: what an engine's tensor of all experts consists of there."""

from __future__ import annotations

from ckptcheck.live.refit.weight_names import has_whole_experts, list_parts, trainer_weights
from ckptcheck.live.runtime.trainers.base import Weight

AT = "model.layers.0.mlp.experts"
NAME = f"{AT}.routed_experts.w13_weight"
WEIGHTS = {
    name: Weight(name, (48, 64), "F32")
    for n in range(4)
    for part in ("gate", "up")
    for name in [f"{AT}.{n}.{part}_proj.weight"]
}


def test_experts_that_a_rank_holds_whole_are_no_slices() -> None:
    sources = trainer_weights(NAME, WEIGHTS)
    assert len(sources) == 8
    assert has_whole_experts(NAME, (2, 96, 64), sources)
    assert [name for name, _ in list_parts(NAME, (2, 96, 64), 2, WEIGHTS)] == [NAME]
    # the same number of elements, split by rows: every expert has a slice there
    assert not has_whole_experts(NAME, (4, 48, 64), sources)
    assert [name for name, _ in list_parts(NAME, (4, 48, 64), 2, WEIGHTS)] == list(WEIGHTS)


def test_other_tensors_have_no_experts() -> None:
    weight = Weight("model.layers.0.self_attn.o_proj.weight", (64, 128), "F32")
    assert not has_whole_experts(weight.name, (64, 64), [weight])


def test_experts_that_the_engine_pads_are_found_in_their_rows_and_columns() -> None:
    """SGLang pads the width of experts on a CPU: 48 to 64. Every part is where its loader puts it, on each rank of one and two."""
    import numpy as np

    from ckptcheck.compare.diagnosis import TensorBits

    down = {
        f"{AT}.{expert}.down_proj.weight": Weight(f"{AT}.{expert}.down_proj.weight", (64, 48), "F32")
        for expert in range(4)
    }
    draw = np.random.default_rng(0)
    held = {name: draw.standard_normal(weight.shape) for name, weight in {**WEIGHTS, **down}.items()}
    for ranks, width in ((1, 64), (2, 32)):
        own = 48 // ranks
        w13, w2 = np.zeros((4, 2 * width, 64)), np.zeros((4, 64, width))
        for expert in range(4):
            gate, up = (held[f"{AT}.{expert}.{part}_proj.weight"] for part in ("gate", "up"))
            w13[expert, :own], w13[expert, width : width + own] = gate[:own], up[:own]
            w2[expert, :, :own] = held[f"{AT}.{expert}.down_proj.weight"][:, :own]
        for name, whole, sources in ((f"{AT}.w13_weight", w13, WEIGHTS), (f"{AT}.w2_weight", w2, down)):
            parts = dict(list_parts(name, whole.shape, ranks, sources))
            assert list(parts) == list(sources)
            for source, part in parts.items():
                expected = held[source][:own] if "down" not in source else held[source][:, :own]
                assert np.array_equal(part.extract(TensorBits("F64", whole)).patterns, expected)


def test_other_tensors_that_are_larger_than_their_sources_stay_whole() -> None:
    name = "model.layers.0.self_attn.qkv_proj.weight"
    weights = {
        each: Weight(each, (48, 64), "F32") for each in (name.replace("qkv_proj", f"{part}_proj") for part in "qkv")
    }
    assert [part for part, _ in list_parts(name, (192, 64), 1, weights)] == [name]
    assert [part for part, _ in list_parts(f"{AT}.w13_weight", (4, 64, 32), 1, WEIGHTS)] == [f"{AT}.w13_weight"]
