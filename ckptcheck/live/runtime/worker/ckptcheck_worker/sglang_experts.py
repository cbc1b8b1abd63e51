"""Computes quantized experts on a CPU one after the other, as SGLang's fused kernels do on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def compute_experts(
    dispatch_output: Any, matrices: Callable[[int], tuple[Any, Any]], round_input: Callable[[Any], Any]
) -> Any:
    """Run the tokens of each expert through it: SiLU of the gate times up, then down, weighted by the router.

    matrices: expert → gate stacked on up [2 · intermediate, hidden], and down [hidden, intermediate]. round_input: quantizes and
    dequantizes the inputs.
    """
    import torch
    from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput
    from torch.nn.functional import linear, silu

    x = dispatch_output.hidden_states
    weights, expert_ids = dispatch_output.topk_output[:2]
    out = torch.zeros_like(x)
    for expert in expert_ids.unique().tolist():
        if expert < 0:
            continue  # a padded token
        token, rank = (expert_ids == expert).nonzero(as_tuple=True)
        gate_up, down = (matrix.to(x.dtype) for matrix in matrices(expert))
        gate, up = linear(round_input(x[token]), gate_up).chunk(2, -1)
        result = linear(round_input(silu(gate) * up), down)
        out.index_add_(0, token, result * weights[token, rank, None].to(result.dtype))
    return StandardCombineInput(hidden_states=out)


def skip_runner(scheme: Any, layer: Any, moe_runner_config: Any) -> None:
    """Replace `create_moe_runner`: there is no kernel to set up."""
    scheme.moe_runner_config = moe_runner_config
