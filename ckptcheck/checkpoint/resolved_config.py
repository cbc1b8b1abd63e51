"""What a config means to transformers: each value from config.json or, where that lacks it, from the config class.

Where a Llama's config lacks ``num_hidden_layers``, transformers takes 32, and it ignores ``n_layer``. Each value keeps its
source, so that a finding can name the missing key and the default that transformers fills in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Literal

import msgspec
from msgspec import structs

from ckptcheck.checkpoint.config_class import ConfigClass, find_config_class, find_nested_class, is_model_class

LANGUAGE_PARTS = (
    "text_config", "language_config", "llm_config", "thinker_config", "language_model_config", "decoder",
)  # fmt: skip
"""Keys under which composite configs nest the language model's settings (Llava, DeepSeek-VL, InternVL, Qwen-Omni, …)."""


class Setting(msgspec.Struct, frozen=True):
    """One value of a config, and where it comes from."""

    name: str
    """The key as config.json writes it, or the field that lacks it."""
    value: Any
    source: Literal["config", "default"]
    """default: config.json does not have the key, and the config class fills the value in."""
    path: str
    """The JSON path of the sub-config, with a dot at the end; empty for the top level."""

    @property
    def key_path(self) -> str:
        """The JSON path of the key, for a finding: ``text_config.hidden_size``."""
        return f"{self.path}{self.name}"


class ResolvedPart(msgspec.Struct, frozen=True):
    """A config or a sub-config as its class understands it."""

    config_class: ConfigClass
    settings: Mapping[str, Any]
    """What config.json says."""
    path: str = ""
    """Its JSON path, with a dot at the end; empty for the top level."""

    def find(self, name: str) -> Setting | None:
        """Return a setting by the name of its field or by an alias; None if the class has neither."""
        found, other = self._find(name), self.config_class.nulls.get(name)
        if other is not None and (found is None or found.value is None):
            same = self._find(other)
            return structs.replace(same, name=found.name if found is not None else name) if same is not None else None
        return found

    def _find(self, name: str) -> Setting | None:
        attribute = self.config_class.attribute(name)
        spellings = self._spellings(name, attribute)
        for key, field in self.config_class.older_names.items():
            if field in spellings and self.settings.get(key) is not None:
                return Setting(key, self.settings[key], "config", self.path)
        given = [key for key in spellings if key in self.settings]
        if given:
            # transformers sets keys that are no fields after the fields, so they win.
            key = min(given, key=lambda key: key in self.config_class.types)
            return Setting(key, self.settings[key], "config", self.path)
        undecided = self.config_class.list_undecided(self.settings)
        for key in spellings:
            if key in self.config_class.defaults and key not in undecided:
                return Setting(key, self.config_class.defaults[key], "default", self.path)
        return None

    def _spellings(self, name: str, attribute: str) -> tuple[str, ...]:
        """The keys under which the class accepts this setting."""
        same = [alias for alias, target in self.config_class.aliases.items() if target == attribute]
        known = {*self.config_class.types, *self.config_class.aliases, *self.config_class.aliases.values()}
        return tuple(key for key in dict.fromkeys((name, attribute, *same)) if key in known)


class ResolvedConfig(msgspec.Struct, frozen=True, dict=True):
    """A whole config.json as transformers understands it, with its sub-configs."""

    top: ResolvedPart
    text: ResolvedPart
    """The language model's part; the same object as `top` where there is no other."""

    def find(self, *names: str) -> Setting | None:
        """Return the first of these settings of the language model that config.json gives, else the first that has a default."""
        found = [setting for name in names if (setting := self.text.find(name)) is not None]
        if not found:
            # The class keeps every other key too, and some models read one that it does not declare (Qwen3-MoE's head_dim).
            found = [
                Setting(name, self.text.settings[name], "config", self.text.path)
                for name in names
                if name in self.text.settings
            ]
        given = [setting for setting in found if setting.source == "config" and setting.value is not None]
        return next(iter(given or found), None)

    def at(self, path: str) -> Setting | None:
        """Return a setting by the JSON path of its field: ``text_config.hidden_size``."""
        outer, _, name = path.rpartition(".")
        if outer in self.top.config_class.flat and outer not in self.top.settings:
            part: ResolvedPart | None = self.text
        else:
            part = next((part for part in self.parts if part.path == (f"{outer}." if outer else "")), None)
        if part is None:
            return None
        found = part.find(name)
        if found is None and name in part.settings:
            return Setting(name, part.settings[name], "config", part.path)
        return found

    @cached_property
    def other_parts(self) -> frozenset[str]:
        """The JSON paths of the sub-configs that are of another type than their class has by default, with a dot at the end."""
        return frozenset(
            f"{part.path}{name}."
            for part in self.parts
            for name, nested in part.config_class.nested.items()
            if isinstance(settings := part.settings.get(name), dict)
            and settings.get("model_type", nested.model_type) != nested.model_type
        )

    @cached_property
    def parts(self) -> tuple[ResolvedPart, ...]:
        """The config and all its sub-configs whose class is known."""
        return tuple(_walk(self.top))


def resolve_config(value: Mapping[str, Any]) -> ResolvedConfig | None:
    """Return the config as transformers resolves it; None if the repository's own code reads it, or the type is unknown."""
    auto_map, model_type = value.get("auto_map"), value.get("model_type")
    if isinstance(auto_map, dict) and "AutoConfig" in auto_map:
        return None
    if model_type == "mistral" and "layer_types" in value:
        model_type = "ministral"
    config_class = find_config_class(model_type) if isinstance(model_type, str) else None
    if config_class is None:
        return None
    top = text = ResolvedPart(config_class, value)
    # Qwen-Omni nests twice: thinker_config.text_config.
    for _ in range(2):
        name = next((name for name in LANGUAGE_PARTS if name in text.config_class.nested), None)
        if name is None:
            break
        inner = _nested_part(text, name)
        given = text.settings.get(name)
        if given is None and name not in text.config_class.flat and _is_of_another_class(value):
            return None
        if inner is None and given is not None:
            break  # no class accepts it: only the top level counts
        if inner is None:
            return None
        text = inner
    return ResolvedConfig(top, text)


def _is_of_another_class(value: Mapping[str, Any]) -> bool:
    """Whether only code outside transformers reads a config: its class is unknown, and its layer sizes are not nested.

    The first LLaVA, and every model built on its code, has `model_type` llava with the Llama settings and the image settings
    side by side at the top level; transformers' own LLaVA nests both.
    """
    architectures = value.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else None
    return isinstance(named, str) and not is_model_class(named) and "hidden_size" in value


def _nested_part(part: ResolvedPart, name: str) -> ResolvedPart | None:
    """Return a sub-config as its class understands it; None if it is absent, malformed or of an unknown class."""
    nested, given = part.config_class.nested[name], part.settings.get(name)
    if given is None and name in part.config_class.flat:
        found = find_nested_class(nested, {})
        return None if found is None else ResolvedPart(found, part.settings, part.path)
    if given is None and nested.is_optional:
        return None
    settings = dict(nested.defaults) if given is None else given
    found = find_nested_class(nested, settings) if isinstance(settings, dict) else None
    return None if found is None else ResolvedPart(found, settings, f"{part.path}{name}.")


def _walk(part: ResolvedPart) -> Iterator[ResolvedPart]:
    yield part
    for name in part.config_class.nested:
        inner = _nested_part(part, name)
        if inner is not None and inner.path.count(".") < 5:
            yield from _walk(inner)
