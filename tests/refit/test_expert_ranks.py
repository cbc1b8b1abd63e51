"""Ranks that hold some experts whole: what an engine's tensor of all experts consists of there."""

from __future__ import annotations

from ckptcheck.refit.fused_parts import list_parts
from ckptcheck.refit.weight_names import has_whole_experts, trainer_weights
from ckptcheck.runtime.trainers.base import Weight

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
