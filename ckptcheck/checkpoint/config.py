"""config.json and its kin, read defensively: a value of the wrong type is a defect, never an exception.

Models with several parts nest the language model's own settings (``text_config`` and others); `Config.get` looks there
first, then at the top.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ckptcheck.checkpoint.document import Defect, parse_object
from ckptcheck.checkpoint.source import Source

MAX_CONFIG = 1 << 26
"""Longest config that is read, in bytes."""
NESTED = ("text_config", "language_config", "llm_config", "thinker_config", "language_model_config", "decoder")
"""Where composite configs keep the language model's part (Llava, DeepSeek-VL, InternVL, Qwen-Omni, …)."""

LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "num_decoder_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model", "dim", "model_dim")
HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "decoder_attention_heads")
INTERMEDIATE = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "decoder_ffn_dim", "d_ff")
EXPERTS = (
    "n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts", "num_routed_experts", "n_experts",
)  # fmt: skip
"""Names that architectures give to the same quantity, most specific first."""


@dataclass(frozen=True)
class Config:
    """A JSON object with settings. value: as parsed, {} where it could not be."""

    file: str
    value: dict[str, Any] = field(default_factory=dict, repr=False)
    defects: tuple[Defect, ...] = ()
    readable: bool = False

    @cached_property
    def text(self) -> dict[str, Any]:
        """The language model's own settings: the nested part where there is one, else the whole."""
        part = self.value
        for _ in range(2):  # Qwen-Omni nests twice: thinker_config.text_config
            for name in NESTED:
                nested = part.get(name)
                if isinstance(nested, dict) and nested:
                    part = nested
                    break
            else:
                break
        return part

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting of the language model: from its own part, else from the top."""
        return self.text[name] if name in self.text else self.value.get(name, default)

    def integer(self, *names: str) -> int | None:
        """Return the first of these settings that is a whole number, else None."""
        for name in names:
            value = self.get(name)
            if type(value) is int:
                return value
        return None

    def key(self, *names: str) -> str:
        """Return where the first of these settings stands, as a path for a finding: ``text_config.hidden_size``."""
        for name in names:
            if name in self.text:
                return name if self.text is self.value else f"{self.nested_name}.{name}"
            if name in self.value:
                return name
        return names[0]

    @cached_property
    def nested_name(self) -> str:
        """Where `text` stands, as a path; empty where it is the whole."""
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
        found = self.value.get("model_type")
        return found if isinstance(found, str) else None

    @cached_property
    def quantized(self) -> bool:
        """Whether a quantization config says that tensors on disk are packed (their shapes then differ)."""
        return any(isinstance(part.get("quantization_config"), dict) for part in (self.value, self.text))


def read_config(source: Source, file: str) -> Config:
    """Read a JSON config. Raises OSError if the file exists but cannot be read."""
    size = source.files[file].size
    if size > MAX_CONFIG:
        return Config(file, defects=(Defect("not-json", f"it has {size:,} bytes; no config is that long"),))
    value, defects = parse_object(source.read(file, 0, size))
    return Config(file, value or {}, tuple(defects), readable=value is not None)
