"""The vLLM worker, whose LoRA has the fault that CKPTCHECK_LORA_FAULT names."""

from __future__ import annotations

import os
from typing import Any

from ckptcheck_worker import vllm_engine

_started: list[str] = []


def _plant(fault: str) -> None:
    """scale: adapters are not scaled. nothing: no layer gets one. slot: a slot that is used again keeps its lora_b."""
    from vllm.lora.layers import base_linear
    from vllm.lora.model_manager import LoRAModelManager
    from vllm.lora.peft_helper import PEFTHelper

    if fault == "scale":
        PEFTHelper.vllm_lora_scaling_factor = property(lambda _: 1.0, lambda *_: None)
    elif fault == "nothing":
        LoRAModelManager._get_lora_layer_weights = lambda *_: None
    elif fault == "slot":
        original = base_linear.BaseLinearLayerWithLoRA.set_lora

        def set_lora(self: Any, index: int, lora_a: Any, lora_b: Any) -> None:
            kept = self.lora_b_stacked[0][index].clone()
            original(self, index, lora_a, lora_b)
            # the engine itself loads adapters before it has started
            used = self.__dict__.setdefault("used_slots", set())
            if index in used:
                self.lora_b_stacked[0][index].copy_(kept)
            used.update([index] if _started else [])

        base_linear.BaseLinearLayerWithLoRA.set_lora = set_lora
    else:
        raise ValueError(fault)


def start(**arguments: Any) -> dict[str, Any]:
    """Start vLLM with the fault."""
    fault = os.environ["CKPTCHECK_LORA_FAULT"]
    if not _started:
        _plant(fault)
    info = vllm_engine.start(**arguments)
    _started.append(fault)
    return info


RPC_METHODS = {**vllm_engine.RPC_METHODS, "start": start}
