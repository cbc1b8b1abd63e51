"""Writes the checkpoints that an engine is tried with. Run with the name of a kind and a folder; needs torch, transformers."""

from __future__ import annotations

import sys

COMMON = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,  # the least that the attention of vLLM's CPU build takes
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def build(kind: str, folder: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kinds = {
        "llama": {"model_type": "llama", "tie_word_embeddings": False},
        "qwen3-tied": {"model_type": "qwen3", "tie_word_embeddings": True},
        "qwen3-moe": {
            "model_type": "qwen3_moe",
            "tie_word_embeddings": False,
            "moe_intermediate_size": 64,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
        },
    }
    chosen = dict(kinds[kind])
    config = AutoConfig.for_model(chosen.pop("model_type"), **COMMON, **chosen)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for values in model.parameters():
            noise = torch.randn(values.shape, generator=draw)
            values.copy_(noise / values.shape[-1] ** 0.5 if values.dim() > 1 else 1 + 0.1 * noise)
    model.save_pretrained(folder)


def logprobs(folder: str, tokens: list[int]) -> list[float]:
    """Return what transformers says of each token after the first, in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        table = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
    return [float(table[place, token]) for place, token in enumerate(tokens[1:])]


if __name__ == "__main__":
    build(*sys.argv[1:])
