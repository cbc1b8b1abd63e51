"""Lets megatron-core 0.16.1 run without a GPU. The patches replace no mathematics, and the model code is untouched.

On a machine with a GPU none of this runs (see `megatron_device`).
"""

from __future__ import annotations

import queue
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class CudaToCpu(TorchFunctionMode):  # type: ignore[misc]
    """Returns the CPU to code that asks for CUDA by name.

    The schedules, the optimizer and the gradient norm make their counters with ``device="cuda"``; the mixed-precision
    optimizer accepts only parameters that call themselves ``torch.cuda.…Tensor``; embeddings that two pipeline stages
    share are moved with ``.cuda()``.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch."""
        keywords = kwargs or {}
        if "cuda" in str(keywords.get("device", "")):
            keywords = {**keywords, "device": "cpu"}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not keywords:
            return func(*args).replace("torch.", "torch.cuda.")
        return func(*args, **keywords)


def patch_megatron_for_cpu() -> None:
    """Replace the functions that need a GPU, for the rest of this process."""
    import megatron.core.dist_checkpointing.strategies.filesystem_async as writer
    import megatron.core.fusions.fused_softmax as softmax
    import megatron.core.tensor_parallel.random as random
    import megatron.core.transformer.moe.moe_utils as moe_utils
    import megatron.core.transformer.utils as transformer_utils
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

    def causal_mask(length: int) -> Any:
        return torch.triu(torch.ones(length, length), diagonal=1).bool()

    def to_host(self: Any, point: Any, tokens_per_expert: Any = None) -> Any:
        for name in ("input_splits", "output_splits"):
            if torch.is_tensor(getattr(self, name, None)):
                setattr(self, name, getattr(self, name).tolist())
        return tokens_per_expert

    torch.cuda.current_device = lambda: torch.device("cpu")  # megatron hands it on as a device
    torch.cuda.synchronize = lambda *_, **__: None
    torch.cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()  # its generators are those of the GPU
    torch.cuda.manual_seed = lambda seed: torch.manual_seed(seed) and None
    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    softmax.get_default_causal_mask = transformer_utils.get_default_causal_mask = causal_mask  # cached on device="cuda"
    writer._results_queue = queue.Queue()  # else saving and loading spawn a process that imports everything again
    moe_utils.te_general_gemm = None  # never bound without Transformer Engine, and the router asks for it
    MoEAlltoAllTokenDispatcher.cuda_dtoh_stream = object()  # "is None" makes it open a stream
    MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize = to_host
    CudaToCpu().__enter__()
