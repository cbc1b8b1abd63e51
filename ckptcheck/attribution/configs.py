"""What two config.json say differently that the forward depends on, and a checkpoint of one's weights with the other's config."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG = "config.json"
SILENT = {
    "_name_or_path", "architectures", "auto_map", "bos_token_id", "dtype", "eos_token_id", "initializer_range", "pad_token_id",
    "torch_dtype", "transformers_version", "use_cache", "output_attentions", "output_hidden_states", "return_dict",
    "attention_dropout", "hidden_dropout", "router_aux_loss_coef", "output_router_logits", "id2label", "label2id",
    "pretraining_tp", "max_position_embeddings", "quantization_config", "chunk_size_feed_forward", "is_encoder_decoder",
}  # fmt: skip
"""Settings that an engine's forward does not compute with. max_position_embeddings only with the scaling that also names it."""
TELLING = ("rope", "theta", "eps", "scal", "window", "norm", "heads", "tie", "act")
"""Parts of names that are said first."""


def differing(engine: Mapping[str, Any], trainer: Mapping[str, Any]) -> tuple[str, ...]:
    """Say what differs, what is most likely to matter first. A setting that only one names may be the other's default.

    >>> differing({"rope_theta": 10000, "dtype": "float32"}, {"rope_parameters": {"rope_theta": 100000.0}, "dtype": "bfloat16"})
    ('rope_theta 10000, and 100000 in the trainer',)
    """
    here, there = _flat(engine), _flat(trainer)
    names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    names.sort(key=lambda name: (not any(part in name for part in TELLING), name not in here or name not in there))
    return tuple(f"{name} {_said(here, name)}, and {_said(there, name)} in the trainer" for name in names)


def combined(weights: Path, config: Path, folder: Path) -> Path:
    """Make a checkpoint of one folder's weights, by links, and another's config.json. Returns it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in sorted(weights.iterdir()):
        if path.is_file() and path.name != CONFIG:
            (folder / path.name).symlink_to(path.resolve())
    shutil.copyfile(config / CONFIG, folder / CONFIG)
    return folder


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their last names: transformers 4 and 5 nest those of rope differently."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if name in SILENT or value is None:
            continue
        if isinstance(value, Mapping):
            found |= {("rope_type" if key == "type" else key): each for key, each in _flat(value).items()}
        else:
            found[name] = value
    if found.get("rope_type") == "default":
        del found["rope_type"]
    return found


def _said(settings: Mapping[str, Any], name: str) -> str:
    if name not in settings:
        return "nothing"
    value = settings[name]
    return f"{value:g}" if isinstance(value, float) and value.is_integer() else json.dumps(value)
