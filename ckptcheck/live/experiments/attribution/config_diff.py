"""Describes the differences of two config.json that affect the forward pass, and combines weights with another config."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckptcheck.checkpoint.files_beside import copy_files_beside
from ckptcheck.checkpoint.source import Folder

CONFIG = "config.json"
SILENT = {
    "_name_or_path", "architectures", "auto_map", "bos_token_id", "dtype", "eos_token_id", "initializer_range", "pad_token_id",
    "torch_dtype", "transformers_version", "use_cache", "output_attentions", "output_hidden_states", "return_dict",
    "attention_dropout", "hidden_dropout", "router_aux_loss_coef", "output_router_logits", "id2label", "label2id",
    "pretraining_tp", "max_position_embeddings", "quantization_config", "chunk_size_feed_forward", "is_encoder_decoder",
}  # fmt: skip
"""Settings that an engine's forward pass does not use; max_position_embeddings matters only with a scaling that names it too."""
TELLING = ("rope", "theta", "eps", "scal", "window", "norm", "heads", "tie", "act")
"""Settings whose names contain one of these come first in the list: they are the most likely causes."""


def describe_config_differences(engine: Mapping[str, Any], trainer: Mapping[str, Any]) -> tuple[str, ...]:
    """Describe each difference in a clause, the most likely causes first.

    A setting that only one config names may be the default of the other.

    >>> trainer = {"rope_parameters": {"rope_theta": 100000.0}, "dtype": "bfloat16"}
    >>> describe_config_differences({"rope_theta": 10000, "dtype": "float32"}, trainer)
    ('rope_theta 10000, and 100000 in the trainer',)
    """
    engine_settings, trainer_settings = _flatten_settings(engine), _flatten_settings(trainer)
    names = [
        name
        for name in {**engine_settings, **trainer_settings}
        if engine_settings.get(name) != trainer_settings.get(name)
    ]
    names.sort(
        key=lambda name: (
            not any(part in name for part in TELLING),
            name not in engine_settings or name not in trainer_settings,
        )
    )
    return tuple(
        f"{name} {_format_setting(engine_settings, name)}, and {_format_setting(trainer_settings, name)} in the trainer"
        for name in names
    )


def link_checkpoint(weights: Path, config: Path, folder: Path) -> Path:
    """Create a checkpoint in `folder` from links to one folder's weights and another's config.json, and return `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, file in Folder(weights, str(weights)).files.items():
        if name != CONFIG and file.outside_link is None:
            (folder / name).symlink_to(file.path)
    copy_files_beside(config, folder, lambda name: name == CONFIG)
    return folder


def _flatten_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return setting → value without nesting: transformers 4 and 5 nest the settings of rope differently."""
    settings: dict[str, Any] = {}
    for name, value in config.items():
        if name in SILENT or value is None:
            continue
        if isinstance(value, Mapping):
            settings |= {
                ("rope_type" if key == "type" else key): nested_value
                for key, nested_value in _flatten_settings(value).items()
            }
        else:
            settings[name] = value
    if settings.get("rope_type") == "default":
        del settings["rope_type"]
    return settings


def _format_setting(settings: Mapping[str, Any], name: str) -> str:
    """Return the value of a setting as text, "nothing" where the config does not name it."""
    if name not in settings:
        return "nothing"
    value = settings[name]
    return f"{value:g}" if isinstance(value, float) and value.is_integer() else json.dumps(value)
