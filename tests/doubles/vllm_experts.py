"""vLLM's own balancer of experts (EplbState) on one CPU rank; vLLM refuses it there only in its configuration.

The clock of a GPU and the groups of ranks are stand-ins.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import vllm.distributed.eplb.eplb_state as eplb
from ckptcheck_worker import expert_slots, tensors
from vllm.distributed import parallel_state


class Experts(torch.nn.Module):
    """The experts of one layer as vLLM holds them: a row of each tensor for each slot."""

    def __init__(self, places: list[int]) -> None:
        super().__init__()
        self.w2_weight = torch.nn.Parameter(torch.tensor(places, dtype=torch.float32)[:, None].expand(-1, 4).clone())


class Mixture(torch.nn.Module):
    """A model of two layers with three experts and two redundant ones, as far as vLLM's EplbState asks it."""

    num_routed_experts = num_logical_experts = 3
    num_redundant_experts, num_physical_experts, num_local_physical_experts = 2, 5, 5
    num_moe_layers, num_expert_groups = 2, 1

    def __init__(self) -> None:
        super().__init__()
        self.moe_layers = torch.nn.ModuleList(Experts([0, 1, 2, 0, 1]) for _ in range(self.num_moe_layers))
        self.expert_weights = [[layer.w2_weight.data.view(5, -1)] for layer in self.moe_layers]

    def set_eplb_state(self, *_: Any) -> None:
        """Take the tensors that the kernels would read."""


class Clock:
    """torch.Event times on a GPU only."""

    def __init__(self, **_: Any) -> None:
        pass

    def record(self) -> None:
        """Nothing to time."""

    synchronize = record

    def elapsed_time(self, _: Any) -> float:
        return 0.0


def balanced(places_of_the_start: bool) -> list[Any]:
    """Move experts by vLLM's own EplbState; return the slots before and after, and after a loader that knows the start alone."""
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        group = SimpleNamespace(
            device_group=torch.distributed.group.WORLD, cpu_group=torch.distributed.group.WORLD, rank_in_group=0,
            world_size=1, ranks=[0], rank=0, local_rank=0,
        )  # fmt: skip
        parallel_state._EP = parallel_state._EPLB = group
        torch.Event = Clock
        eplb.get_node_count = lambda: 1
    model = Mixture()
    config = SimpleNamespace(
        eplb_config=SimpleNamespace(window_size=4, step_interval=8, use_async=False, policy="default", communicator="torch_gloo"),
        enable_elastic_ep=False, num_ubatches=0, data_parallel_size=1,
    )  # fmt: skip
    state = eplb.EplbState(config, torch.device("cpu"))
    state._propagate_shared_tensors = lambda *_: None
    state.add_model(model, SimpleNamespace(model="mixture", compute_hash=lambda: "mixture"))

    def slots() -> list[Any]:
        return expert_slots.digest_slots(0, expert_slots.vllm_layers(model, state), tensors.walk(model))["entries"]

    before = slots()
    expert_slots.rearrange_vllm(state)
    after = slots()
    for layer in model.moe_layers if places_of_the_start else ():
        layer.w2_weight.data.copy_(Experts([0, 1, 2, 0, 1]).w2_weight.data)
    return [before, after, slots()]
