"""Reads config.json and similar files defensively: a value of the wrong type is a defect, never an exception.

Composite models nest the settings of the language model (``text_config`` and others); `Config.get` looks there first,
then at the top level.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

import msgspec

from ckptcheck.checkpoint.document import Defect, parse_object
from ckptcheck.checkpoint.resolved_config import LANGUAGE_PARTS, ResolvedConfig, resolve_config
from ckptcheck.checkpoint.setting_text import describe, write_value
from ckptcheck.checkpoint.source import Source, read_document

MAX_CONFIG = 1 << 26
"""Longest config that is read, in bytes: 2,500 times the longest one in tests/data/structures."""

LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "num_decoder_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model", "dim", "model_dim")
HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "decoder_attention_heads")
INTERMEDIATE = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "decoder_ffn_dim", "d_ff")
EXPERTS = (
    "n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts", "num_routed_experts", "n_experts",
)  # fmt: skip
MTP_LAYERS = (
    "num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers", "mtp_num_layers", "num_mtp_modules",
    "num_next_n_predict_layers",
)  # fmt: skip
EXPERTS_PER_TOKEN = (
    "num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_top_k", "moe_topk", "moe_k", "num_selected_experts",
)  # fmt: skip
"""Keys that architectures use for the same quantity, most specific first."""
GROUPED_ROUTERS = ("deepseek_v3", "glm4_moe")
"""Model types whose routers always choose groups of experts first, as CFG024 checks it."""

COUNTS = (*LAYERS, *HIDDEN, *HEADS, *INTERMEDIATE, *EXPERTS, "vocab_size", "num_key_value_heads", "head_dim")
"""Keys of sizes and counts."""
READ_OF_ALL = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
    "intermediate_size",
)  # fmt: skip
"""Counts that SGLang 0.5.23 (configs/model_config.py) reads of every config, known to its class or not; and the last, which
Mamba's models read and its class does not declare."""
NORM_EPSILON = re.compile(r"(rms_norm|layer_?norm|norm)_eps(ilon)?")
"""Keys of the epsilon of the norms."""
MAX_COUNT = 2**40
"""Larger than any size or count. Products of numbers up to it are quick to compute; products of 400 digits are not."""


class Config(msgspec.Struct, frozen=True, dict=True):
    """A JSON object of settings."""

    file: str
    value: dict[str, Any] = {}
    """The parsed object; {} where the file could not be parsed."""
    defects: tuple[Defect, ...] = ()
    readable: bool = False
    """Whether the file holds a JSON object."""

    @cached_property
    def levels(self) -> list[dict[str, Any]]:
        """The objects from the whole config to the language model's settings: one, two, or three."""
        levels = [self.value]
        # Qwen-Omni nests twice: thinker_config.text_config.
        for _ in range(2):
            for name in LANGUAGE_PARTS:
                nested = levels[-1].get(name)
                if isinstance(nested, dict) and nested:
                    levels.append(nested)
                    break
            else:
                break
        return levels

    @property
    def text(self) -> dict[str, Any]:
        """The language model's settings: the nested object where there is one, else the whole config."""
        return self.levels[-1]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting of the language model: from the nested settings, else from the top level."""
        return self.text[name] if name in self.text else self.value.get(name, default)

    def integer(self, *names: str) -> int | None:
        """Return the first of these settings that is an integer, else None."""
        for name in names:
            value = self.get(name)
            if type(value) is int:
                return value
        return None

    @cached_property
    def resolved(self) -> ResolvedConfig | None:
        """The config as transformers resolves it, with defaults; None if the class of its `model_type` is unknown."""
        return resolve_config(self.value)

    def number(self, *names: str) -> int | None:
        """Return the first of these settings that is an integer, counting the defaults of its class as transformers does.

        If the class is unknown, only the config itself counts.
        """
        if self.resolved is None:
            return self.integer(*names)
        setting = self.resolved.find(*names)
        return setting.value if setting is not None and type(setting.value) is int else None

    def describe(self, *names: str) -> str:
        """Describe the first of these settings for a finding: its value, and whether config.json gives it."""
        setting = self.resolved.find(*names) if self.resolved is not None else None
        if setting is None:
            return f"{self.key_path(*names).rpartition('.')[2]} is {write_value(self.integer(*names))}"
        return describe(setting)

    def key_path(self, *names: str) -> str:
        """Return the JSON path of the first of these settings, for a finding: ``text_config.hidden_size``."""
        if self.resolved is not None and (setting := self.resolved.find(*names)) is not None:
            return setting.key_path
        for name in names:
            if name in self.text:
                return name if self.text is self.value else f"{self.nested_name}.{name}"
            if name in self.value:
                return name
        return names[0]

    @cached_property
    def malformed_counts(self) -> dict[str, Any]:
        """Sizes and counts that are not non-negative integers: JSON path → value.

        Lists, objects and null are left out: a list gives a number per layer, an object the settings of a part, and null leaves
        the number to the class.
        """
        values = {name: self.get(name) for name in dict.fromkeys(COUNTS) if self._is_read(name)}
        # With multi-head latent attention only angles are computed from it: 64.0 does as well as 64.
        if isinstance(width := values.get("head_dim"), float) and width.is_integer() and self.number("kv_lora_rank"):
            del values["head_dim"]
        return {
            self.key_path(name): value
            for name, value in values.items()
            if value is not None
            and not isinstance(value, (list, dict))
            and not (type(value) is int and 0 <= value < MAX_COUNT)
        }

    def _is_read(self, name: str) -> bool:
        """Whether a loader reads a count. A class keeps the keys that it does not know, and nothing is built from them."""
        if self.resolved is None:
            return True
        return name in READ_OF_ALL or any(
            part.find(name) or name in part.config_class.older_names for part in (self.resolved.text, self.resolved.top)
        )

    @cached_property
    def nested_name(self) -> str:
        """The JSON path of `text`; empty where that is the whole config."""
        if self.text is self.value:
            return ""
        for name, part in self.value.items():
            if part is self.text:
                return name
            if isinstance(part, dict):
                for inner, nested in part.items():
                    if nested is self.text:
                        return f"{name}.{inner}"
        return ""

    @cached_property
    def architecture(self) -> str | None:
        """The first of `architectures`, which decides the class that loaders build."""
        listed = self.value.get("architectures")
        return listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], str) else None

    @cached_property
    def model_type(self) -> str | None:
        """The top-level `model_type`."""
        value = self.value.get("model_type")
        return value if isinstance(value, str) else None

    @cached_property
    def is_quantized(self) -> bool:
        """Whether a quantization config declares packed tensors, whose shapes differ from the model's."""
        return any(isinstance(part.get("quantization_config"), dict) for part in (self.value, self.text))


def read_config(source: Source, file: str) -> Config:
    """Read a JSON config. Raises OSError if the file exists but cannot be read."""
    size = source.files[file].size
    if size > MAX_CONFIG:
        return Config(file, defects=(Defect("not-json", f"it has {size:,} bytes; no config is that long"),))
    value, defects = parse_object(read_document(source, file, size))
    return Config(file, value or {}, tuple(defects), readable=value is not None)
