"""Has transformers load a checkpoint without values: it builds the model on the meta device and matches every stored tensor.

Read against transformers 5.23.0 (modeling_utils.py, core_model_loading.py).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from . import valueless_files  # first, because transformers must import its safe_open
from .dry_load_answer import describe_failure, describe_load, limit_memory
from .outside_files import stay_inside

import transformers  # isort: skip
from transformers import modeling_utils  # isort: skip
from transformers.models.auto import configuration_auto, modeling_auto  # isort: skip

assert valueless_files

SPARE_MEMORY = 8 << 30
KEPT_IN_FP8 = ("FineGrainedFP8HfQuantizer",)
"""Quantizers that, without a GPU, have the loader turn all weights into bf16: a dry load keeps the stored form."""
AUTO_CLASSES = {
    "MODEL_FOR_CAUSAL_LM": "AutoModelForCausalLM",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT": "AutoModelForImageTextToText",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM": "AutoModelForSeq2SeqLM",
    "MODEL": "AutoModel",
}
"""Table of architectures for a model_type → the auto class that reads it, the usual purposes of a checkpoint first."""


def dry_load(folder: str) -> dict[str, Any]:
    """Load a folder's safetensors files as `from_pretrained` does, without their values; see dry_load_answer.py."""
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    limit_memory(SPARE_MEMORY)
    stay_inside(folder)
    found: list[Any] = []
    modeling_utils.log_state_dict_report = lambda **report: found.append(
        report["loading_info"]
    )  # it raises with a shorter message
    name = ""
    try:
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        if kind := _find_unknown_type(config):
            return {"model": "", "unasked": f"it has no model_type {kind[:100]}"}
        model_class = _find_class(config)
        if model_class is None:
            return {"model": "", "unasked": f"it has no class {str(config['architectures'][0])[:100]}"}
        name = model_class.__name__
        _keep_quantized()
        model, _ = model_class.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, output_loading_info=True, device_map={"": "meta"}
        )
        name = type(model).__name__
    except Exception as error:
        return describe_failure(error, name)
    info = found[-1]
    if info.conversion_errors:
        parameter, trace = next(iter(sorted(info.conversion_errors.items())))
        last = [line for line in str(trace).splitlines() if line.strip()][-3:]
        return {"model": name, "refused": f"{parameter} cannot be converted: {' '.join(' '.join(last).split())[:600]}"}
    if info.error_msgs:
        return {"model": name, "refused": " ".join(" ".join(map(str, info.error_msgs)).split())[:1000]}
    misshapen = [(str(key), list(stored), list(own)) for key, stored, own in info.mismatched_keys]
    wrong = {key for key, _, _ in misshapen}
    return describe_load(
        name,
        unfilled=set(map(str, info.missing_keys)) - wrong,
        misshapen=misshapen,
        left_out=map(str, info.unexpected_keys),
        parameters=sum(1 for _ in model.parameters()),
    )


def _find_unknown_type(config: Any) -> str:
    """Return the model_type of a config if transformers lacks it, so that its auto classes refuse it; otherwise ""."""
    kind = config.get("model_type") if isinstance(config, dict) else None
    return kind if isinstance(kind, str) and kind not in configuration_auto.CONFIG_MAPPING else ""


def _find_class(config: Any) -> Any:
    """Return the class that the config names, or the usual one for its model_type; None if transformers has neither."""
    config = config if isinstance(config, dict) else {}
    named = config.get("architectures")
    name = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else None
    if name is not None:
        found = getattr(transformers, name, None)
        return found if isinstance(found, type) and issubclass(found, modeling_utils.PreTrainedModel) else None
    for table, auto_class in AUTO_CLASSES.items():
        if config.get("model_type") in getattr(modeling_auto, f"{table}_MAPPING_NAMES"):
            return getattr(transformers, auto_class)
    return transformers.AutoModel


def _keep_quantized() -> None:
    """Let quantizers of `KEPT_IN_FP8` build the modules that they build on a GPU."""
    import transformers.quantizers as quantizers

    for name in KEPT_IN_FP8:
        quantizer = getattr(quantizers.auto, name, None)
        if quantizer is not None:
            quantizer.validate_environment = lambda *_, **__: None


def read_version() -> str:
    """Return the version of transformers."""
    return str(transformers.__version__)


os.environ["HF_HUB_OFFLINE"] = "1"
RPC_METHODS = {"dry_load": dry_load, "prepare": read_version, "version": read_version}
