"""Plain mode: vLLM's CPU build computes with weights that can be read and written, instead of with packed copies.

vLLM packs every linear layer into an oneDNN handler and empties the parameter, and packs the experts' weights within
their parameters; neither can be read back, and what reloads them forgets some (a tied head, the experts). Plain mode
replaces both by torch. It is settled before a model is loaded, in the process that holds the worker.
"""

from __future__ import annotations

import os
from typing import Any

VARIABLE = "CKPTCHECK_PLAIN"
"""An environment variable, for workers inherit it: 1 for plain mode."""
watched: dict[int, list[Any]] | None = None
"""While it is watched: experts of a layer, by their identity → the experts that tokens went to, in the order of layers."""
_stock: dict[tuple[Any, str], Any] = {}


def settle() -> None:
    """Put plain mode on or off, as the variable says. Does nothing off the CPU."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.model_executor.layers import utils
    from vllm.model_executor.layers.fused_moe.experts import cpu_moe

    if os.environ.get(VARIABLE) == "1":
        _replace(utils, "dispatch_cpu_unquantized_gemm", _unpacked)
        for experts in (cpu_moe.CPUUnquantizedExperts, *cpu_moe.CPUUnquantizedExperts.__subclasses__()):
            _replace(experts, "process_weights_after_loading", _as_loaded)
            _replace(experts, "apply", _experts)
    else:
        for (owner, name), original in _stock.items():
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        _stock.clear()


def _replace(owner: Any, name: str, function: Any) -> None:
    _stock.setdefault((owner, name), vars(owner).get(name))
    setattr(owner, name, function)


def _unpacked(layer: Any, remove_weight: bool) -> None:
    import torch

    layer.cpu_linear = torch.nn.functional.linear


def _as_loaded(self: Any, layer: Any) -> None:
    self._use_zentorch = False


def _experts(
    self: Any,
    output: Any,
    hidden_states: Any,
    w1: Any,
    w2: Any,
    topk_weights: Any,
    topk_ids: Any,
    activation: Any,
    global_num_experts: int,
    expert_map: Any,
    *_: Any,
    apply_router_weight_on_input: bool = False,
    **__: Any,
) -> None:
    """Send every token through its experts, one expert after the other. w1: gate above up; silu only."""
    import torch
    from torch.nn.functional import linear, silu

    if str(getattr(activation, "value", activation)) != "silu" or self.w1_bias is not None or self.w2_bias is not None:
        raise NotImplementedError("plain mode computes experts with silu and without biases; use stock mode")
    if watched is not None:
        watched.setdefault(id(self), []).append(topk_ids.tolist())
    total = torch.zeros(output.shape, dtype=torch.float32, device=output.device)
    for local, (up, down) in enumerate(zip(w1, w2)):
        number = local if expert_map is None else int((expert_map == local).nonzero()[0])
        token, choice = (topk_ids == number).nonzero(as_tuple=True)
        if not token.numel():
            continue
        gate, value = linear(hidden_states[token], up).chunk(2, -1)
        made = linear(silu(gate) * value, down).float()
        if not apply_router_weight_on_input:
            made = made * topk_weights[token, choice, None].float()
        total.index_add_(0, token, made)
    output.copy_(total)
