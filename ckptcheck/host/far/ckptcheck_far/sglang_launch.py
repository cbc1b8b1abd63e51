"""With which arguments SGLang is started, on a CPU and on GPUs. Read against SGLang 0.5.23."""

from __future__ import annotations

import importlib.util
from typing import Any

from . import sglang_switches
from .sglang_processes import fork_ready

ON_GPU = {"disable_cuda_graph": True, "disable_overlap_schedule": True}
"""Eager, and no step planned before the one before is over, unless switches say otherwise: as on a CPU."""


def arguments(
    model: str,
    dtype: str,
    ranks: int,
    length: int,
    tokens: int,
    switches: dict[str, Any],
    options: dict[str, Any],
    loader: str,
) -> dict[str, Any]:
    """Return the arguments of sglang.Engine; see `sglang_engine.start`. loader: its custom weight loader, for asking ranks."""
    import torch

    place = on_gpu() if torch.cuda.is_available() else _on_cpu()
    return {
        "model_path": model,
        "dtype": dtype,
        "tp_size": ranks,
        "context_length": length,
        "max_total_tokens": tokens,
        "max_running_requests": 8,
        "skip_tokenizer_init": not switches.get("text"),
        "grammar_backend": "none",
        "enable_custom_logit_processor": True,
        "custom_weight_loader": [loader],
        "random_seed": 0,
        "log_level": "error",
        "sleep_on_idle": True,  # else an idle scheduler takes a core
        **place,
        **sglang_switches.options(switches),
        **options,
    }


def on_gpu() -> dict[str, Any]:
    """Return the arguments for a GPU: it can sleep where the package is that SGLang needs for that, and wakes with its weights."""
    able = importlib.util.find_spec("torch_memory_saver") is not None
    return {**ON_GPU, "enable_memory_saver": able, "enable_weights_cpu_backup": able}


def _on_cpu() -> dict[str, Any]:
    fork_ready()
    return {
        "device": "cpu",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "mem_fraction_static": 0.9,  # SGLang's own estimate is negative without chunks; max_total_tokens is what bounds
        "disable_cuda_graph": True,
        "disable_overlap_schedule": True,
    }
