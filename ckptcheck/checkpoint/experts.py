"""Routed experts as the names and shapes show them: a tensor for each, or one for all."""

from __future__ import annotations

from collections.abc import Iterator

from ckptcheck.checkpoint.anatomy import Anatomy


def numbered_experts(anatomy: Anatomy) -> Iterator[tuple[int, str, set[int], dict[str, set[int]]]]:
    """Yield layer, group (``mlp.experts``), the experts there, and name within an expert → the experts that have it.

    Left out are the experts that compute nothing (LongCat's `zero_expert_num`), numbered after the real ones: writers
    store them in part, in full or not at all.
    """
    if anatomy.stack is None:
        return
    virtual = anatomy.config is not None and (anatomy.config.integer("zero_expert_num") or 0) > 0
    real = anatomy.experts if virtual and isinstance(anatomy.experts, int) else None
    for layer in anatomy.layers:
        for group, parts in anatomy.stack.groups.get(layer, {}).items():
            if group.rpartition(".")[2] in ("experts", "local_experts") and "shared" not in group:
                kept = (
                    {part: {expert for expert in having if expert < real} for part, having in parts.items()}
                    if real
                    else parts
                )
                members = set().union(*kept.values())
                if members:
                    yield layer, group, members, kept


def fused_names(anatomy: Anatomy) -> Iterator[tuple[int, str]]:
    """Yield layer and name of every tensor that holds all experts of a layer: ``mlp.experts.gate_up_proj``."""
    if anatomy.stack is None:
        return
    for layer, names in anatomy.layers.items():
        for name in sorted(names):
            if ".experts." in f".{name}" and name.endswith(
                ("gate_up_proj", "down_proj", "gate_up_proj.weight", "down_proj.weight")
            ):
                shape = anatomy.tensors[anatomy.stack.name(layer, name)].shape if "{}" not in name else ()
                if len(shape) == 3:
                    yield layer, name


def fused_experts(anatomy: Anatomy) -> Iterator[tuple[str, int]]:
    """Yield the full name of every fused tensor and how many experts it holds."""
    if anatomy.stack is None:
        return
    for layer, name in fused_names(anatomy):
        full = anatomy.stack.name(layer, name)
        yield full, anatomy.tensors[full].shape[0]
