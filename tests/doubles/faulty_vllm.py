"""The vLLM worker with faults: a bit of a tensor flips, or a layer computes something else although its weights are right."""

from __future__ import annotations

import copy
from typing import Any

from ckptcheck_worker import vllm_engine, vllm_launch

vllm_launch.WORKER_EXTENSION = "faulty_vllm_extension.FaultyExtension"


def plant(layer: int, what: str) -> None:
    """Let an engine compute otherwise, with the same weights but for "qkv".

    eps: a layer's second norm has another epsilon. rope: its attention another rotary base. qkv: parts of its q, k and v are
    exchanged. act: its MLP has another activation. scale: logits lack a factor. head: they are rounded to 8 bits.
    """

    def change(worker: Any) -> None:
        import torch

        block = worker.model_runner.get_model().model.layers[layer]
        if what == "eps":
            block.post_attention_layernorm.variance_epsilon = 0.05
        elif what == "rope":
            rotary = copy.deepcopy(block.self_attn.rotary_emb)
            rotary.base = 500.0
            rotary.cos_sin_cache = rotary._compute_cos_sin_cache().to(rotary.cos_sin_cache.dtype)
            block.self_attn.rotary_emb = rotary
            getattr(block.self_attn, "attn", rotary)  # the cache is read through rotary_emb alone
        elif what == "qkv":
            with torch.inference_mode():
                weight = block.self_attn.qkv_proj.weight
                size = block.self_attn.head_dim
                heads = weight[: 2 * size].clone()
                weight[:size], weight[size : 2 * size] = heads[size:], heads[:size]
        elif what == "act":
            block.mlp.act_fn = type("Gelu", (torch.nn.Module,), {"forward": gelu_and_mul})()
        elif what == "scale":
            worker.model_runner.get_model().logits_processor.scale = 0.25
        elif what == "head":
            worker.model_runner.get_model().logits_processor.register_forward_hook(
                lambda _, __, logits: logits.to(torch.float8_e5m2).to(logits.dtype)
            )
        else:
            raise ValueError(what)

    def gelu_and_mul(_: Any, gate_up: Any) -> Any:
        import torch

        gate, up = gate_up.chunk(2, -1)
        return torch.nn.functional.gelu(gate) * up

    vllm_engine._llm().collective_rpc(change)


RPC_METHODS = {**vllm_engine.RPC_METHODS, "plant": plant}
