"""Plain mode: makes vLLM's CPU build compute with readable and writable weights instead of packed copies.

vLLM packs every linear layer into an oneDNN handler and empties the parameter, and packs the experts' weights inside their
parameters. Neither can be read back, and a reload forgets some of them (a tied head, the experts). Plain mode replaces both by
torch. It must be applied before a model is loaded, in the process of the vLLM worker.
"""

from __future__ import annotations

import os
from typing import Any

PLAIN_VARIABLE = "CKPTCHECK_PLAIN"
"""1 for plain mode. An environment variable, because vLLM's workers inherit it."""
recorded_experts: dict[int, list[Any]] | None = None
"""While recording: id of a layer's experts → the experts of every token, in the order of the layers. None while not recording."""
_originals: dict[tuple[Any, str], Any] = {}


def apply_plain_mode() -> None:
    """Switch plain mode on or off, as the variable says. Does nothing on GPUs."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.model_executor.layers import utils
    from vllm.model_executor.layers.fused_moe.experts import cpu_moe

    if os.environ.get(PLAIN_VARIABLE) == "1":
        _patch(utils, "dispatch_cpu_unquantized_gemm", _use_torch_linear)
        for experts in (cpu_moe.CPUUnquantizedExperts, *cpu_moe.CPUUnquantizedExperts.__subclasses__()):
            _patch(experts, "process_weights_after_loading", _keep_layout)
            _patch(experts, "apply", _compute_experts)
    else:
        for (owner, name), original in _originals.items():
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        _originals.clear()


def _patch(owner: Any, name: str, function: Any) -> None:
    _originals.setdefault((owner, name), vars(owner).get(name))
    setattr(owner, name, function)


def _use_torch_linear(layer: Any, remove_weight: bool) -> None:
    import torch

    layer.cpu_linear = torch.nn.functional.linear


def _keep_layout(self: Any, layer: Any) -> None:
    self._use_zentorch = False


def _compute_experts(
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
    """Send every token through its experts, one expert after the other. w1: gate stacked on up; silu only."""
    import torch
    from torch.nn.functional import linear, silu

    if str(getattr(activation, "value", activation)) != "silu" or self.w1_bias is not None or self.w2_bias is not None:
        raise NotImplementedError("plain mode computes experts with silu and without biases; use stock mode")
    if recorded_experts is not None:
        recorded_experts.setdefault(id(self), []).append(topk_ids.tolist())
    total = torch.zeros(output.shape, dtype=torch.float32, device=output.device)
    for local, (up, down) in enumerate(zip(w1, w2)):
        number = local if expert_map is None else int((expert_map == local).nonzero()[0])
        token, choice = (topk_ids == number).nonzero(as_tuple=True)
        if not token.numel():
            continue
        gate, value = linear(hidden_states[token], up).chunk(2, -1)
        result = linear(silu(gate) * value, down).float()
        if not apply_router_weight_on_input:
            result = result * topk_weights[token, choice, None].float()
        total.index_add_(0, token, result)
    output.copy_(total)
