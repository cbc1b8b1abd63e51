"""Experts on a CPU, one after the other: what SGLang's fused kernels compute for layers whose weights are quantized."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def mixed(dispatch_output: Any, matrices: Callable[[int], tuple[Any, Any]], rounded: Callable[[Any], Any]) -> Any:
    """Run the tokens of each expert through it: SiLU of the gate times up, then down, weighted by the router.

    matrices: expert → gate above up [2 · middle, hidden], and down [hidden, middle]. rounded: what becomes of inputs.
    """
    import torch
    from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput
    from torch.nn.functional import linear, silu

    x = dispatch_output.hidden_states
    weights, chosen = dispatch_output.topk_output[:2]
    out = torch.zeros_like(x)
    for expert in chosen.unique().tolist():
        if expert < 0:
            continue  # a padded token
        token, rank = (chosen == expert).nonzero(as_tuple=True)
        gate_up, down = (matrix.to(x.dtype) for matrix in matrices(expert))
        gate, up = linear(rounded(x[token]), gate_up).chunk(2, -1)
        result = linear(rounded(silu(gate) * up), down)
        out.index_add_(0, token, result * weights[token, rank, None].to(result.dtype))
    return StandardCombineInput(hidden_states=out)


def no_runner(scheme: Any, layer: Any, moe_runner_config: Any) -> None:
    """Stand in for `create_moe_runner`: there is no kernel to set up."""
    scheme.moe_runner_config = moe_runner_config
