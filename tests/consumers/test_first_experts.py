"""The first expert of a layer stands for the others only where they are stored like it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ckptcheck.checkpoint.layout import parse_layout
from ckptcheck.consumers.mismatches import _leave_out_like_first_expert


def leave_out(modules: dict[str, bool]) -> list[str]:
    ways = {way: [name for name, quantized in modules.items() if quantized is way] for way in (False, True)}
    stored = SimpleNamespace(items=lambda: [(SimpleNamespace(is_quantized=way), names) for way, names in ways.items()])
    layout = parse_layout([f"{name}.weight" for name in modules])
    ckpt: Any = SimpleNamespace(layout=layout, quantization=SimpleNamespace(storages=stored))
    return [name.removeprefix("model.layers.") for name in _leave_out_like_first_expert(ckpt, modules)]


def name(layer: int, expert: int) -> str:
    return f"model.layers.{layer}.mlp.experts.{expert}.up_proj"


def test_experts_alike_are_left_out() -> None:
    modules = {f"model.layers.{layer}.self_attn.q_proj": True for layer in range(2)}
    modules |= {name(layer, expert): True for layer in range(2) for expert in range(4)}
    assert leave_out(modules) == [
        "0.self_attn.q_proj", "1.self_attn.q_proj", "0.mlp.experts.0.up_proj", "1.mlp.experts.0.up_proj"
    ]  # fmt: skip


def test_an_expert_that_is_stored_otherwise_is_kept() -> None:
    modules = {name(layer, expert): (layer, expert) != (1, 2) for layer in range(2) for expert in range(4)}
    assert leave_out(modules) == ["0.mlp.experts.0.up_proj", "1.mlp.experts.0.up_proj", "1.mlp.experts.2.up_proj"]


def test_experts_of_a_layer_without_the_first_one_are_kept() -> None:
    """As in a share of expert parallelism."""
    modules = {name(layer, expert + 2 * layer): True for layer in range(2) for expert in range(2)}
    assert leave_out(modules) == ["0.mlp.experts.0.up_proj", "1.mlp.experts.2.up_proj", "1.mlp.experts.3.up_proj"]
