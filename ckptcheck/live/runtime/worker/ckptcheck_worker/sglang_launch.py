"""The arguments with which SGLang is started, on a CPU and on GPUs. Read against SGLang 0.5.23."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from typing import Any

from . import forkserver_copy, sglang_options

PRELOADED_MODULES = [
    "ckptcheck_worker.quick_imports",
    "sglang.srt.entrypoints.engine",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.models.registry",
]
GPU_DEFAULTS = {"disable_cuda_graph": True, "disable_overlap_schedule": True}
"""Eager, and no overlap of scheduling and computing, as on a CPU; switches replace these."""


def arguments(
    model: str,
    dtype: str,
    ranks: int,
    context_len: int,
    tokens: int,
    switches: dict[str, Any],
    options: dict[str, Any],
) -> dict[str, Any]:
    """Return the arguments of sglang.Engine; see `sglang_engine.start`."""
    import torch

    device_arguments = gpu_arguments(dtype) if torch.cuda.is_available() else _cpu_arguments()
    return {
        "model_path": model,
        "dtype": dtype,
        "tp_size": ranks,
        "context_length": context_len,
        "max_total_tokens": tokens,
        "max_running_requests": 8,
        "skip_tokenizer_init": not switches.get("text"),
        "grammar_backend": "none",
        "enable_custom_logit_processor": True,
        "random_seed": 0,
        "log_level": "error",
        # without it an idle scheduler occupies a core
        "sleep_on_idle": True,
        **device_arguments,
        # the other backends of LoRA are written in Triton
        **({"lora_backend": "torch_native"} if options.get("enable_lora") and "device" in device_arguments else {}),
        **sglang_options.engine_arguments(switches),
        **options,
    }


def gpu_arguments(dtype: str) -> dict[str, Any]:
    """Return the arguments for a GPU. SGLang can sleep if torch_memory_saver is installed, and then backs up its weights.

    FlashAttention and FlashInfer, which SGLang chooses by itself, take 16-bit numbers only; torch's attention takes float32.
    """
    can_sleep = importlib.util.find_spec("torch_memory_saver") is not None
    attention = {"attention_backend": "torch_native"} if dtype == "float32" else {}
    return {**GPU_DEFAULTS, **attention, "enable_memory_saver": can_sleep, "enable_weights_cpu_backup": can_sleep}


def _cpu_arguments() -> dict[str, Any]:
    _use_forkserver()
    return {
        "device": "cpu",
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        # SGLang's own estimate is negative without chunked prefill; max_total_tokens limits the cache
        "mem_fraction_static": 0.9,
        "disable_cuda_graph": True,
        "disable_overlap_schedule": True,
    }


def import_modules() -> None:
    """Import what SGLang's processes need on a CPU. If a module is missing, SGLang's own import reports it."""
    for module in PRELOADED_MODULES[1:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def _use_forkserver() -> None:
    """Make SGLang fork its processes from one that has imported everything.

    SGLang lets multiprocessing spawn its scheduler and detokenizer, and their imports take as long as the rest of the start.
    Processes forked from multiprocessing's forkserver, which has only imported modules, start at once. It is a copy of this
    process, before SGLang has done anything here. SGLang ends it with the engine, and for the next engine of this process it
    imports again. On a GPU SGLang keeps its own way.
    """
    import multiprocessing

    if multiprocessing.get_start_method(allow_none=True) == "forkserver":
        return
    multiprocessing.set_start_method("forkserver", force=True)
    multiprocessing.set_start_method = _ignore_start_method
    forkserver_copy.start_forkserver(PRELOADED_MODULES)


def _ignore_start_method(*_: Any, **__: Any) -> None:
    """Ignore SGLang's request for another start method."""
