"""Finds routed experts by tensor names and shapes: a tensor per expert, or one tensor for all experts of a layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from ckptcheck.checkpoint.components import Components


def iter_numbered_experts(anatomy: Components) -> Iterator[tuple[int, str, set[int], Mapping[str, Set[int]]]]:
    """Yield layer, group (``mlp.experts``), its expert numbers, and tensor name within an expert → the experts that have it.

    Experts that compute nothing (LongCat's `zero_expert_num`) are omitted. They are numbered after the real ones, and
    writers store them in part, in full or not at all.
    """
    if anatomy.stack is None:
        return
    virtual = anatomy.config is not None and (anatomy.config.integer("zero_expert_num") or 0) > 0
    real = anatomy.num_experts if virtual and isinstance(anatomy.num_experts, int) else None
    for layer in anatomy.layers:
        for group, parts in anatomy.stack.groups.get(layer, {}).items():
            if group.rpartition(".")[2] in ("experts", "local_experts") and "shared" not in group:
                parts_of_real: Mapping[str, Set[int]] = {
                    part: {expert for expert in having if expert < real} if real else having.keys()
                    for part, having in parts.items()
                }
                members = set().union(*parts_of_real.values())
                if members:
                    yield layer, group, members, parts_of_real


def fused_names(anatomy: Components) -> Iterator[tuple[int, str]]:
    """Yield layer number and relative name of every tensor that holds all experts of a layer: ``mlp.experts.gate_up_proj``."""
    if anatomy.stack is None:
        return
    for layer, names in anatomy.layers.items():
        for name in sorted(names):
            if ".experts." in f".{name}" and name.endswith(
                ("gate_up_proj", "down_proj", "gate_up_proj.weight", "down_proj.weight")
            ):
                shape = anatomy.tensors[anatomy.stack.full_name(layer, name)].shape if "{}" not in name else ()
                if len(shape) == 3:
                    yield layer, name


def fused_experts(anatomy: Components) -> Iterator[tuple[str, int]]:
    """Yield the full name of every fused expert tensor and the number of experts it holds."""
    if anatomy.stack is None:
        return
    for layer, name in fused_names(anatomy):
        full = anatomy.stack.full_name(layer, name)
        yield full, anatomy.tensors[full].shape[0]
