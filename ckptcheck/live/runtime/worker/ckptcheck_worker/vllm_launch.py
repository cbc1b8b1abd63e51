"""The arguments with which vLLM is started, on a CPU and on GPUs. Read against vLLM 0.32.0."""

from __future__ import annotations

import json
import os
from typing import Any

from . import vllm_images, vllm_options, vllm_update

PACKAGE = __name__.rpartition(".")[0]
WORKER_EXTENSION = f"{PACKAGE}.vllm_worker.Extension"
"""Mixed into vLLM's worker class."""
GPU_DEFAULTS = {
    # as on a CPU: the scheduler does not plan the next step while the current one runs
    "async_scheduling": False,
    # the share that must be free at a start: the trainer and the reference use the same GPU
    "gpu_memory_utilization": 0.02,
}
"""Further arguments of LLM() on GPUs. The size of the cache is an argument of its own (cache_bytes)."""


def arguments(
    model: str,
    dtype: str,
    ranks: int,
    context_len: int,
    cache_bytes: int,
    switches: dict[str, Any],
    options: dict[str, Any],
    transport: str,
    sleeps: bool,
) -> dict[str, Any]:
    """Return the arguments of LLM(); see `vllm_engine.start`."""
    backend = vllm_update.choose_backend(transport, runs_on_cpu())
    transfer = {"weight_transfer_config": {"backend": backend}} if backend else {}
    processors = {"logits_processors": [f"{PACKAGE}.vllm_force_tokens:ForceTokens"]}
    if options.get("speculative_config") or switches.get("speculative") or switches.get("draft"):
        # vLLM refuses logits processors with speculative decoding; tokens cannot be forced then
        processors = {}
    return {
        "model": model,
        "dtype": dtype,
        "tensor_parallel_size": ranks,
        "max_model_len": context_len,
        "max_num_batched_tokens": _max_batched_tokens(context_len, switches),
        "kv_cache_memory_bytes": cache_bytes,
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "max_num_seqs": 8,
        "max_logprobs": -1,
        "logprobs_mode": "raw_logprobs",
        "generation_config": "vllm",
        "seed": 0,
        "worker_extension_cls": WORKER_EXTENSION,
        "disable_log_stats": True,
        **processors,
        **transfer,
        **gpu_arguments(sleeps),
        **(_state_cache_arguments(model) if runs_on_cpu() else {}),
        **vllm_images.engine_arguments(model),
        **vllm_options.engine_arguments(switches),
        **options,
    }


def _state_cache_arguments(model: str) -> dict[str, Any]:
    """Return the argument that keeps the states of Mamba-2 layers out of the prefix cache, {} for a model without such layers.

    The cache indexes the state after every chunk, and vLLM 0.32's kernel on a CPU (mamba/ops/cpu/mamba_ssm.py) returns only the
    last one: each prompt that is longer than a chunk raises an IndexError.
    """
    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    config = config.get("text_config") or config
    has_states = "ssm_state_size" in config or "mamba_d_state" in config
    is_chunked = "mamba_chunk_size" in config or "chunk_size" in config
    return {"enable_prefix_caching": False} if has_states and is_chunked else {}


def _max_batched_tokens(context_len: int, switches: dict[str, Any]) -> int:
    """Return the most tokens of one step: on a CPU all concurrent prompts', on a GPU one prompt's, to save memory.

    If a step has no room for the whole prompt of a request with a seed, vLLM 0.32 computes the prompt in chunks and rewinds the
    request's generator, which crashes on a CPU ("CPU Generator does not use offset", GPUModelRunner._bookkeeping_sync).
    """
    concurrent = switches.get("sequences", 8) if runs_on_cpu() else 1
    return max(context_len * concurrent, 512)


def runs_on_cpu() -> bool:
    """Return whether this vLLM computes on a CPU."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def gpu_arguments(sleeps: bool) -> dict[str, Any]:
    """Return the further arguments on a GPU, with sleep mode if requested and available; {} on a CPU."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return {}
    return {**GPU_DEFAULTS, "enable_sleep_mode": sleeps and bool(current_platform.is_sleep_mode_available())}
