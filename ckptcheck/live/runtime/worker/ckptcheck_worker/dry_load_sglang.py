"""Has SGLang load a checkpoint without values: its own loader fills a model on the meta device.

Read against SGLang 0.5.23 (srt/model_loader/loader.py).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

from . import valueless_files  # first, because SGLang must import its safe_open
from .dry_load_answer import describe_failure, describe_load, limit_memory, stub_torchvision
from .outside_files import stay_inside
from .parameter_fills import ParameterFills, describe_fills, run_threads_inline
from .sglang_model_stubs import stub_device

import sglang  # isort: skip
import torch  # isort: skip
from sglang.srt import runtime_context  # isort: skip
from sglang.srt.configs.load_config import LoadConfig  # isort: skip
from sglang.srt import models  # isort: skip
from sglang.srt.configs.model_config import ModelConfig  # isort: skip
from sglang.srt.distributed import init_distributed_environment, initialize_model_parallel  # isort: skip
from sglang.srt.layers.dp_attention import initialize_dp_attention_flags  # isort: skip
from sglang.srt.model_loader import loader as loaders  # isort: skip
from sglang.srt.models.registry import ModelRegistry  # isort: skip  # imports all models, which takes seconds
from sglang.srt.server_args import ServerArgs  # isort: skip

assert valueless_files

SPARE_MEMORY = 16 << 30
WITH_ZERO_BIAS = {"ColumnParallelLinear", "RowParallelLinear"}
"""Layers whose bias starts at zero (srt/layers/linear.py)."""
PADDED_ON_CPU = ("sglang.srt.layers.linear", "sglang.srt.layers.parameter")
"""Modules whose loaders pad a stored tensor that is too small with zeros, but only on a CPU."""


def dry_load(folder: str) -> dict[str, Any]:
    """Load a folder's safetensors files as a server's start does, without their values; see dry_load_answer.py."""
    run_threads_inline()
    limit_memory(SPARE_MEMORY)
    stay_inside(folder)
    name = ""
    try:
        config = _read_config(folder)
        settings = LoadConfig(model_loader_extra_config={"enable_multithread_load": False})
        loader = loaders.DefaultModelLoader(settings)
        quantization = loaders._get_quantization_config(config, settings)
        with loaders.set_default_torch_dtype(config.dtype):
            with torch.device("meta"):
                model = loaders._initialize_model(config, settings, quantization)
            name = type(model).__name__
            fills = ParameterFills(model)
            _padded.clear()
            with fills:
                loader.load_weights_only(model, loader._get_all_weights(config, model), torch.device("meta"))
    except Exception as error:
        answer = describe_failure(error, name, valueless_files.describe_last_read())
        if "refused" in answer and (lost := _find_lost_class(folder)):
            return {"model": "", "unasked": f"this build of SGLang cannot import its own {lost}"}
        return answer
    found = describe_fills(fills, _list_zero_biases(model))
    return describe_load(name, **{**found, "partly": found["partly"] + _padded})


_joined = False


def _read_config(folder: str) -> Any:
    """Publish the settings of a server, which its layers ask for, and return the model's configuration."""
    global _joined
    arguments = ServerArgs(
        model_path=folder,
        device="cpu",
        attention_backend="triton",
        skip_tokenizer_init=True,
        mamba_radix_cache_strategy="no_buffer",
        disable_overlap_schedule=True,
    )
    runtime_context.publish(arguments, role="scheduler", ranks=runtime_context.SpawnRanks(world_rank=0, gpu_id=0))
    if not _joined:
        file = os.path.join(tempfile.mkdtemp(), "store")
        init_distributed_environment(1, 0, f"file://{file}", 0, backend="gloo")
        initialize_model_parallel()
        _joined = True
    initialize_dp_attention_flags(arguments)
    _load_as_on_gpus()
    config = ModelConfig.from_server_args(arguments)
    for each in (config.hf_config, config.hf_text_config):
        # models ask for these on a CPU; with more than one rank they would have other numbers of heads
        each.original_num_attention_heads = config.num_attention_heads
        each.original_total_num_kv_heads = config.get_total_num_kv_heads()
    return config


def _list_zero_biases(model: torch.nn.Module) -> set[str]:
    """Return the biases that SGLang starts at zero: it builds some for models that have none (Whisper, Llama 3.2 Vision)."""
    return {
        f"{path}.bias"
        for path, module in model.named_modules()
        if WITH_ZERO_BIAS & {kind.__name__ for kind in type(module).__mro__}
    }


def _find_lost_class(folder: str) -> str:
    """Return the architecture of config.json if SGLang's class for it could not be imported here; otherwise ""."""
    try:
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    except (ValueError, RecursionError):  # SGLang has refused it for that
        return ""
    named = config.get("architectures") if isinstance(config, dict) else None
    name = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    if not name.isidentifier() or name in ModelRegistry.models:
        return ""
    modules = Path(models.__path__[0]).glob("*.py")
    return name if any(f"class {name}(" in module.read_text(encoding="utf-8") for module in modules) else ""


def _load_as_on_gpus() -> None:
    """Let the loaders run as on GPUs, and record the tensors that they pad there."""
    for module in list(sys.modules.values()):
        name = getattr(module, "__name__", "")
        if name in PADDED_ON_CPU:
            vars(module)["_is_cpu"] = False
        if name.startswith("sglang.srt.") and hasattr(module, "get_rope_wrapper"):
            vars(module)["get_rope_wrapper"] = lambda *_, **__: None  # a CPU's knows fewer models; none is used
        pad = getattr(module, "pad_or_narrow_weight", None)
        if name.startswith("sglang.srt.") and pad is not None and not isinstance(pad, _RecordedPadding):
            vars(module)["pad_or_narrow_weight"] = _RecordedPadding(pad)


_padded: list[tuple[str, int, int]] = []
"""Stored tensors that SGLang pads with zeros: name, stored elements, elements that the parameter takes."""


class _RecordedPadding:
    """SGLang's function that pads a weight (srt/layers/utils/common.py); on one rank it pads no sound weight."""

    def __init__(self, pad: Any) -> None:
        self._pad = pad

    def __call__(self, loaded: Any, dimension: int, start: int, size: int) -> Any:
        padded = self._pad(loaded, dimension, start, size)
        length = loaded.shape[dimension]
        stored = max(0, min(length - start, size)) * (loaded.numel() // max(length, 1))
        _padded.append((valueless_files.last_read, stored, padded.numel()))
        return padded


def read_version() -> str:
    """Return the version of SGLang."""
    return str(sglang.__version__)


stub_device()
stub_torchvision()
RPC_METHODS = {"dry_load": dry_load, "prepare": read_version, "version": read_version}
