"""Reads which expert lies in which slot of an engine's expert tensors, and digests every slot.

An engine with redundant experts, or one that balances them (EPLB), has more slots than experts: some hold copies, and which expert
lies where changes while it runs. A digest of the whole tensor then says nothing of a single expert.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .shard_digest import digests

Layer = tuple[str, list[int], int]
"""(name of the module, the expert in each of this rank's slots, which part of each expert the rank holds)."""


def digest_slots(rank: int, layers: Iterable[Layer], model_tensors: Iterable[Any]) -> dict[str, Any]:
    """Return [tensor, experts, part, digest of each slot] of every parameter that has one row for each slot of its module.

    model_tensors: as `tensors.walk` yields them.
    """
    by_module = {f"{name}.": (experts, part) for name, experts, part in layers}
    found, rows = [], []
    for name, kind, tensor, opaque in model_tensors:
        module = next((prefix for prefix in by_module if name.startswith(prefix)), None)
        if module is None or kind != "parameter" or opaque or not tensor.dim():
            continue
        experts, part = by_module[module]
        if tensor.shape[0] == len(experts):
            found.append([name, experts, part, []])
            rows += list(tensor.detach().unbind(0))
    values = iter(digests(rows))
    for entry in found:
        entry[-1] = [next(values) for _ in entry[1]]
    return {"rank": rank, "entries": found}


def sglang_layers(model: Any) -> Iterator[Layer]:
    """Yield the expert layers of one rank of SGLang; none if every expert lies in the slot of its number."""
    from sglang.srt.eplb.expert_location import get_global_expert_location_metadata

    metadata = get_global_expert_location_metadata()
    if metadata is None:
        return
    size = metadata.num_local_physical_experts
    for name, module in model.named_modules():
        if hasattr(module, "layer_id") and hasattr(module, "moe_ep_rank") and hasattr(module, "w13_weight"):
            places = metadata.physical_to_logical_map_cpu[module.layer_id].tolist()
            begin = size * int(module.moe_ep_rank)
            yield name, places[begin : begin + size], int(module.moe_tp_rank)


def rotate_sglang(runner: Any, model: Any) -> None:
    """Have SGLang move every expert to another slot, as its balancer does: expert e + 1 to the slot of e."""
    from sglang.srt.eplb import expert_location
    from sglang.srt.runtime_context import get_parallel

    now = expert_location.get_global_expert_location_metadata()
    places = (now.physical_to_logical_map_cpu + 1) % now.num_logical_experts
    wanted = expert_location.ExpertLocationMetadata.init_by_mapping(
        runner.model_config, physical_to_logical_map=places, moe_ep_rank=get_parallel().moe_ep_rank
    )
    updater, weights = runner.expert_location_updater, model.routed_experts_weights_of_layer
    if next(model.parameters()).device.type == "cpu":
        # it would first empty the cache of the device, and torch has none for CPUs
        updater._first_execution = False
    parallel = get_parallel()
    updater.update(
        weights, wanted, update_layer_ids=sorted(weights.keys()), nnodes=parallel.nnodes, rank=parallel.tp_rank
    )


def vllm_layers(model: Any, state: Any) -> Iterator[Layer]:
    """Yield the expert layers of one rank of vLLM. state: its EplbState; None if it does not balance experts."""
    if state is None:
        return
    names = {id(module): name for name, module in model.named_modules()}
    for each in state.model_states.values():
        if each.model is not model:
            continue
        from vllm.distributed import get_ep_group

        size, rank = model.num_local_physical_experts, get_ep_group().rank_in_group
        for layer, places in zip(model.moe_layers, each.physical_to_logical_map.tolist()):
            yield names[id(layer)], places[size * rank : size * (rank + 1)], 0


def rearrange_vllm(state: Any) -> None:
    """Have vLLM place the experts anew, for the same load in every engine: nearly all tokens go to the last expert."""
    for each in state.model_states.values():
        is_last = each.physical_to_logical_map == each.model.num_logical_experts - 1
        each.expert_load_window.copy_(
            (1 + 1000 * is_last.to(each.expert_load_window.dtype)).expand_as(each.expert_load_window)
        )
    state.rearrange()
