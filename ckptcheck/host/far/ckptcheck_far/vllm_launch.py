"""With which arguments vLLM is started, on a CPU and off it. Read against vLLM 0.32.0."""

from __future__ import annotations

from typing import Any

from . import vllm_switches, vllm_transfer

PACKAGE = __name__.rpartition(".")[0]
ON_GPU = {
    "async_scheduling": False,  # as on a CPU: the next step is not planned before this one is over
    "gpu_memory_utilization": 0.02,  # what has to be free at a start: the trainer and the reference are there as well
}
"""Further arguments of LLM() off the CPU. The cache has its own size (cache_bytes)."""


def arguments(
    model: str,
    dtype: str,
    ranks: int,
    length: int,
    cache_bytes: int,
    switches: dict[str, Any],
    options: dict[str, Any],
    transport: str,
) -> dict[str, Any]:
    """Return the arguments of LLM(); see `vllm_engine.start`."""
    backend = vllm_transfer.backend(transport, on_cpu())
    transfer = {"weight_transfer_config": {"backend": backend}} if backend else {}
    forced = {"logits_processors": [f"{PACKAGE}.vllm_forced:Forced"]}
    if options.get("speculative_config") or switches.get("speculative"):
        forced = {}  # vLLM refuses both together; `follow` cannot force tokens then
    return {
        "model": model,
        "dtype": dtype,
        "tensor_parallel_size": ranks,
        "max_model_len": length,
        "max_num_batched_tokens": _budget(length, switches),
        "kv_cache_memory_bytes": cache_bytes,
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "max_num_seqs": 8,
        "max_logprobs": -1,
        "logprobs_mode": "raw_logprobs",
        "generation_config": "vllm",
        "seed": 0,
        "worker_extension_cls": f"{PACKAGE}.vllm_worker.Extension",
        "disable_log_stats": True,
        **forced,
        **transfer,
        **off_cpu(),
        **vllm_switches.options(switches),
        **options,
    }


def _budget(length: int, switches: dict[str, Any]) -> int:
    """Return the tokens of one step: on a CPU those of all prompts that run at once, elsewhere that would take memory.

    vLLM 0.32 computes the prompt of a request with a seed in pieces where a step has no room for it, rewinds the request's
    generator then, and ends on a CPU ("CPU Generator does not use offset", GPUModelRunner._bookkeeping_sync).
    """
    together = switches.get("sequences", 8) if on_cpu() else 1
    return max(length * together, 512)


def on_cpu() -> bool:
    """Whether this vLLM computes on a CPU."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def off_cpu() -> dict[str, Any]:
    """Return the further arguments off a CPU: it can sleep there, as it does in jobs that share GPUs with a trainer."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return {}
    return {**ON_GPU, "enable_sleep_mode": bool(current_platform.is_sleep_mode_available())}
