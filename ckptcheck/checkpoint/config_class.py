"""The config class of each ``model_type`` in transformers: fixtures/learn_config_classes.py generates the table.

A class fills in a default for every key that config.json lacks, and refuses a value of the wrong type. The table has one line for
each class; a line is parsed on first use.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import msgspec

_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "dict": (dict,),
    "float": (float,),
    "int": (int,),
    "list": (list,),
    "str": (str,),
    "Sequence": (list, str),
    "tuple": (),
    "object": (),
}
"""Name in a type → the Python types that a JSON value of it has; JSON has no tuples and no config objects."""


class NestedClass(msgspec.Struct, frozen=True):
    """How a class builds a sub-config: by which class, and from which values if config.json has no such sub-config."""

    model_type: str
    class_name: str | None
    """The class that builds it whatever its model_type is; None if the sub-config's model_type decides."""
    defaults: Mapping[str, Any]
    is_optional: bool
    """Whether the model can do without it."""


@dataclass(frozen=True)
class ConfigClass:
    """The config class of one ``model_type``."""

    model_type: str
    facts: Mapping[str, Any]
    """Its line of the table."""

    @property
    def name(self) -> str:
        """The name of the class: ``LlamaConfig``."""
        return str(self.facts["class"])

    @cached_property
    def types(self) -> dict[str, str]:
        """Field → its type, as Python writes it: ``int | None``."""
        return {name: hint for hint, fields in self.facts["fields"].items() for name in fields}

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """Field → its default, without the fields that the class derives from others."""
        derived = set(self.facts.get("derived", ()))
        return {
            name: default
            for fields in self.facts["fields"].values()
            for name, default in fields.items()
            if name not in derived
        }

    @property
    def aliases(self) -> Mapping[str, str]:
        """Other name of a field → the attribute that keeps its value: ``num_hidden_layers`` → ``n_layer`` in GPT-2."""
        aliases: Mapping[str, str] = self.facts.get("aliases", {})
        return aliases

    @property
    def older_names(self) -> Mapping[str, str]:
        """Key that is no field → the field that gets its value: ``n_embed`` → ``hidden_size`` in Bloom."""
        older: Mapping[str, str] = self.facts.get("older", {})
        return older

    def list_undecided(self, settings: Mapping[str, Any]) -> frozenset[str]:
        """Return the fields whose defaults do not hold, because the class computes them from other keys in config.json."""
        opaque = self.facts.get("opaque", {})
        given = any(settings.get(key) is not None for key in opaque.get("keys", ()))
        return frozenset(opaque["fields"]) if given else frozenset()

    @cached_property
    def nested(self) -> dict[str, NestedClass]:
        """Sub-config → how the class builds it."""
        return {
            key: NestedClass(
                spec["model_type"], spec.get("class"), spec.get("defaults", {}), bool(spec.get("optional"))
            )
            for key, spec in self.facts.get("nested", {}).items()
        }

    @property
    def nulls(self) -> Mapping[str, str]:
        """Field → the field whose value it takes if it is null."""
        nulls: Mapping[str, str] = self.facts.get("nulls", {})
        return nulls

    @property
    def flat(self) -> tuple[str, ...]:
        """The sub-configs that the class builds from the top level if they are absent (Qwen2-VL)."""
        return tuple(self.facts.get("flat", ()))

    @property
    def bounds(self) -> Mapping[str, tuple[float | None, float | None]]:
        """Field → the least and the largest value that the class accepts; None for no bound."""
        bounds: Mapping[str, tuple[float | None, float | None]] = self.facts.get("bounds", {})
        return bounds

    @property
    def divisors(self) -> Mapping[str, str]:
        """Number of heads → the size that it must divide; else the class refuses the config."""
        divisors: Mapping[str, str] = self.facts.get("divisors", {})
        return divisors

    @property
    def models(self) -> tuple[str, ...]:
        """The model classes that transformers' auto classes build from it: ``LlamaForCausalLM``, …."""
        return tuple(self.facts.get("models", ()))

    @property
    def rope(self) -> Mapping[str, Any]:
        """The defaults for rotary embeddings: ``theta``, ``default``; {} for a class without them."""
        rope: Mapping[str, Any] = self.facts.get("rope", {})
        return rope

    @property
    def checks_layer_lists(self) -> bool:
        """Whether the class checks lists of layer kinds as most classes do, not in its own way."""
        return not self.facts.get("own_layer_check", False)

    @property
    def has_layer_types(self) -> bool:
        """Whether the class gives each layer a kind even if config.json lists none (Jamba's periods)."""
        return bool(self.facts.get("has_layer_types"))

    def attribute(self, key: str) -> str:
        """Return the attribute that keeps the value of a key."""
        return self.aliases.get(key, key)

    def accepts(self, field: str, value: Any) -> bool:
        """Whether the class accepts a value of this type for a key; it accepts any value for a key that is no field."""
        hint = self.type_of(field)
        return hint is None or is_instance(value, hint)

    def type_of(self, key: str) -> str | None:
        """Return the type of a field, also by an alias; None for a key that is no field."""
        attribute = self.attribute(key)
        same = (key, attribute, *(alias for alias, target in self.aliases.items() if target == attribute))
        return next((self.types[name] for name in same if name in self.types), None)


def is_instance(value: Any, hint: str) -> bool:
    """Whether a JSON value has a type, as huggingface_hub's strict dataclasses decide it.

    An integer is no float there, and true and false are no numbers.
    """
    return _matches(value, _parse_type(hint))


@cache
def _parse_type(hint: str) -> ast.expr:
    return ast.parse(hint, mode="eval").body


def _matches(value: Any, hint: ast.expr) -> bool:
    if isinstance(value, dict) and value.keys() == {"__float__"}:
        value = 0.0  # transformers writes infinity and NaN in this form, so treat it as a float
    match hint:
        case ast.BinOp(left=left, right=right):
            return _matches(value, left) or _matches(value, right)
        case ast.Constant(value=None):
            return value is None
        case ast.Name(id="Any"):
            return True
        case ast.Name(id=name):
            return isinstance(value, _TYPES.get(name, ())) and not (name == "int" and isinstance(value, bool))
        case ast.Subscript(value=ast.Name(id="Literal"), slice=choices):
            listed = [ast.literal_eval(choice) for choice in getattr(choices, "elts", [choices])]
            return any(type(choice) is type(value) and choice == value for choice in listed)
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[key, inner])):
            return isinstance(value, dict) and all(
                _matches(name, key) and _matches(item, inner) for name, item in value.items()
            )
        case ast.Subscript(value=ast.Name(id=name), slice=inner):
            return (
                isinstance(value, (list, str))
                and isinstance(value, _TYPES.get(name, ()))
                and all(_matches(item, inner) for item in value)
            )
    return True


@cache
def _table() -> bytes:
    return (Path(__file__).parent / "config_classes.json").read_bytes()


@cache
def _parse_line(key: str) -> Any:
    """Return the value of a line of the table, or None."""
    table, opening = _table(), f"\n{json.dumps(key)}: ".encode()
    start = table.find(opening)
    if start < 0:
        return None
    start += len(opening)
    value = table[start : table.index(b"\n", start)].removesuffix(b",")
    return None if value == b"{" else json.loads(value)


@cache
def find_config_class(model_type: str) -> ConfigClass | None:
    """Return transformers' config class for a ``model_type``; None if it does not know it."""
    facts = _parse_line(model_type) if model_type and not model_type.startswith("class:") else None
    return ConfigClass(model_type, facts) if isinstance(facts, dict) and "class" in facts else None


def find_nested_class(nested: NestedClass, settings: Mapping[str, Any]) -> ConfigClass | None:
    """Return the class that builds a sub-config of these settings; None if transformers does not know it."""
    if nested.class_name is None:
        model_type = settings.get("model_type", nested.model_type)
        return find_config_class(model_type) if isinstance(model_type, str) else None
    found = find_config_class(nested.model_type)
    if found is not None and found.name == nested.class_name:
        return found
    facts = _parse_line(f"class:{nested.class_name}")
    return ConfigClass(nested.model_type, facts) if facts else None


def learned_version() -> str:
    """Return the version of transformers that the table was generated from."""
    return str(_parse_line("transformers"))


def known_activations() -> frozenset[str]:
    """Return the names of the activation functions that transformers has."""
    return frozenset(_parse_line("activations"))


def known_dtypes() -> frozenset[str]:
    """Return the names of the dtypes that torch has."""
    return frozenset(_parse_line("dtypes"))


def is_model_class(name: str) -> bool:
    """Whether transformers has a model class of this name that its auto classes build."""
    return bool(find_model_types(name))


@cache
def find_model_types(architecture: str) -> tuple[str, ...]:
    """Return every ``model_type`` for which transformers' auto classes build a model class; () for a class they do not build."""
    name = json.dumps(architecture).encode()
    if name not in _table():
        return ()
    lines = (line for line in _table().splitlines() if name in line and b'"models": ' in line)
    return tuple(
        json.loads(line.partition(b": ")[0])
        for line in lines
        if architecture in json.loads(line.partition(b'"models": ')[2].partition(b"]")[0] + b"]")
    )


def required_rope_keys() -> dict[str, list[str]]:
    """Return the types of rotary embeddings: name → the keys that transformers requires."""
    keys: dict[str, list[str]] = _parse_line("rope_types")
    return keys


def known_layer_types() -> dict[str, frozenset[str]]:
    """Return the entries that transformers accepts in its lists of layer kinds, by the name of the list."""
    return {name: frozenset(_parse_line(name)) for name in ("layer_types", "mlp_layer_types")}
