"""Packed modules by name: what is sent, what an engine holds, and the entry of a list that both sides read alike."""

from __future__ import annotations

import json

import pytest

from ckptcheck.live.refit.packing import packing_mismatches, suggest_ignore_entry
from ckptcheck.live.refit.weight_names import trainer_weights
from ckptcheck.live.runtime.engines.base import TensorDigest
from ckptcheck.live.runtime.trainers.base import Weight

LAYER = "model.layers.0"
GATE, QUERY = f"{LAYER}.mlp.gate", f"{LAYER}.self_attn.q_proj"
PACKED = ("weight_packed", "weight_scale", "weight_shape")
SENT = [
    *(f"{LAYER}.self_attn.{part}_proj.{role}" for part in "qkvo" for role in PACKED),
    *(
        f"{LAYER}.mlp.experts.{n}.{part}_proj.{role}"
        for n in (0, 1)
        for part in ("gate", "up", "down")
        for role in PACKED
    ),
    f"{GATE}.weight",
    "model.norm.weight",
]
HELD = [
    *(f"{LAYER}.self_attn.{part}.{role}" for part in ("qkv_proj", "o_proj") for role in PACKED),
    *(f"{LAYER}.mlp.experts.{part}_{role}" for part in ("w13", "w2") for role in PACKED),
    f"{GATE}.weight",
    "model.norm.weight",
]


def held(names: list[str]) -> dict[tuple[int, str], TensorDigest]:
    return {(0, name): TensorDigest(name, 0, "parameter", "I32", (2, 2), 16, "00", "1+0") for name in names}


def test_both_sides_agree() -> None:
    assert packing_mismatches(SENT, held(HELD)) == ([], [])
    weights = {name: Weight(name, (2, 2), "I32") for name in SENT}
    made = {weight.name for name in HELD for weight in trainer_weights(name, weights)}
    assert made == set(SENT), "nothing that is sent is made into nothing"


def test_a_router_or_experts_that_one_side_packs() -> None:
    router = [*(name for name in SENT if name != f"{GATE}.weight"), *(f"{GATE}.{role}" for role in PACKED)]
    assert packing_mismatches(router, held(HELD)) == ([GATE], [])
    plain = [name for name in HELD if ".experts." not in name] + [
        f"{LAYER}.mlp.experts.{w}_weight" for w in ("w13", "w2")
    ]
    experts = sorted(f"{LAYER}.mlp.experts.{n}.{part}_proj" for n in (0, 1) for part in ("gate", "up", "down"))
    assert packing_mismatches(SENT, held(plain)) == (experts, [])
    unpacked = [name for name in SENT if not name.startswith(QUERY)] + [f"{QUERY}.weight"]
    assert packing_mismatches(unpacked, held(HELD)) == ([], [QUERY])


def test_eight_bits_have_the_name_of_a_plain_weight_and_a_scale() -> None:
    sent = [f"{QUERY}.weight", f"{QUERY}.weight_scale"]
    assert packing_mismatches(
        sent, held([f"{LAYER}.self_attn.qkv_proj.weight", f"{LAYER}.self_attn.qkv_proj.weight_scale"])
    ) == ([], [])
    assert packing_mismatches(sent, held([f"{LAYER}.self_attn.qkv_proj.weight"])) == ([QUERY], [])


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        (["lm_head", r"re:.*mlp\.gate$"], (r"re:.*mlp\.gate$", r"re:.*mlp\.gate(\.weight)?$")),
        (["lm_head", r"re:.*mlp\.gate"], None),
        (["re:(", 3, None], None),
    ],
)
def test_the_entry_to_blame(entries: list[object], found: tuple[str, str] | None) -> None:
    assert suggest_ignore_entry(json.dumps(entries), [GATE]) == found
    assert suggest_ignore_entry("", [GATE]) is None
