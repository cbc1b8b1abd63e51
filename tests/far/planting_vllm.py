"""vLLM's host with one more verb: it plants a fault of computation, not of weights, in one layer."""

from __future__ import annotations

import copy
from typing import Any

from ckptcheck_far import vllm_engine


def plant(layer: int, what: str) -> None:
    """Give a layer's second norm another epsilon, its attention another rotary base, or exchange its q, k and v in part."""

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
        else:
            raise ValueError(what)

    vllm_engine._llm().collective_rpc(change)


VERBS = {**vllm_engine.VERBS, "plant": plant}
