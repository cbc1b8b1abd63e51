"""The config class of each ``model_type`` in transformers: fixtures/learn_config_classes.py generates the table.

A class fills in a default for every key that config.json lacks, and refuses a value of the wrong type. The table has one line for
each class; a line is parsed on first use.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any

import msgspec

from ckptcheck.checkpoint.learned_table import read_line, whole_table

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


class NestedClass(msgspec.Struct, frozen=True, rename={"class_name": "class", "is_optional": "optional"}):
    """How a class builds a sub-config: by which class, and from which values if config.json has no such sub-config."""

    model_type: str
    class_name: str | None = None
    """The class that builds it whatever its model_type is; None if the sub-config's model_type decides."""
    defaults: dict[str, Any] = {}
    is_optional: bool = False
    """Whether the model can do without it."""


class Opaque(msgspec.Struct, frozen=True):
    """Fields that a class computes in its own way as soon as config.json has one of some keys."""

    keys: tuple[str, ...] = ()
    fields: frozenset[str] = frozenset()


class ConfigClass(msgspec.Struct, frozen=True, dict=True, rename={"name": "class", "older_names": "older"}):
    """The config class of one ``model_type``."""

    name: str
    """The name of the class: ``LlamaConfig``."""
    fields: dict[str, dict[str, Any]]
    """Type, as Python writes it (``int | None``) → the fields of that type, with their defaults."""
    model_type: str = ""
    derived: frozenset[str] = frozenset()
    """The fields that the class derives from others."""
    aliases: dict[str, str] = {}
    """Other name of a field → the attribute that keeps its value: ``num_hidden_layers`` → ``n_layer`` in GPT-2."""
    older_names: dict[str, str] = {}
    """Key that is no field → the field that gets its value: ``n_embed`` → ``hidden_size`` in Bloom."""
    opaque: Opaque = Opaque()
    nested: dict[str, NestedClass] = {}
    """Sub-config → how the class builds it."""
    nulls: dict[str, str] = {}
    """Field → the field whose value it takes if it is null."""
    flat: tuple[str, ...] = ()
    """The sub-configs that the class builds from the top level if they are absent (Qwen2-VL)."""
    bounds: dict[str, tuple[Any, Any]] = {}
    """Field → the least and the largest value that the class accepts; None for no bound."""
    divisors: dict[str, str] = {}
    """Number of heads → the size that it must divide; else the class refuses the config."""
    models: tuple[str, ...] = ()
    """The model classes that transformers' auto classes build from it: ``LlamaForCausalLM``, …."""
    rope: dict[str, Any] = {}
    """The defaults for rotary embeddings: ``theta``, ``default``; {} for a class without them."""
    own_layer_check: bool = False
    """Whether the class checks lists of layer kinds in its own way, not as most classes do."""
    has_layer_types: bool = False
    """Whether the class gives each layer a kind even if config.json lists none (Jamba's periods)."""

    @cached_property
    def types(self) -> dict[str, str]:
        """Field → its type, as Python writes it: ``int | None``."""
        return {name: hint for hint, fields in self.fields.items() for name in fields}

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """Field → its default, without the fields that the class derives from others."""
        listed = (field for fields in self.fields.values() for field in fields.items())
        return {name: default for name, default in listed if name not in self.derived}

    def list_undecided(self, settings: Mapping[str, Any]) -> frozenset[str]:
        """Return the fields whose defaults do not hold, because the class computes them from other keys in config.json."""
        given = any(settings.get(key) is not None for key in self.opaque.keys)
        return self.opaque.fields if given else frozenset()

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


def _read_class(key: str, model_type: str) -> ConfigClass | None:
    facts = read_line("config_classes", key)
    is_class = isinstance(facts, dict) and "class" in facts
    return msgspec.convert({**facts, "model_type": model_type}, ConfigClass) if is_class else None


@cache
def find_config_class(model_type: str) -> ConfigClass | None:
    """Return transformers' config class for a ``model_type``; None if it does not know it."""
    return _read_class(model_type, model_type) if model_type and not model_type.startswith("class:") else None


def find_nested_class(nested: NestedClass, settings: Mapping[str, Any]) -> ConfigClass | None:
    """Return the class that builds a sub-config of these settings; None if transformers does not know it."""
    if nested.class_name is None:
        model_type = settings.get("model_type", nested.model_type)
        return find_config_class(model_type) if isinstance(model_type, str) else None
    found = find_config_class(nested.model_type)
    if found is not None and found.name == nested.class_name:
        return found
    return _read_class(f"class:{nested.class_name}", nested.model_type)


def learned_version() -> str:
    """Return the version of transformers that the table was generated from."""
    return str(read_line("config_classes", "transformers"))


def known_activations() -> frozenset[str]:
    """Return the names of the activation functions that transformers has."""
    return frozenset(read_line("config_classes", "activations"))


def known_dtypes() -> frozenset[str]:
    """Return the names of the dtypes that torch has."""
    return frozenset(read_line("config_classes", "dtypes"))


def is_model_class(name: str) -> bool:
    """Whether transformers has a model class of this name that its auto classes build."""
    return bool(find_model_types(name))


@cache
def find_model_types(architecture: str) -> tuple[str, ...]:
    """Return every ``model_type`` for which transformers' auto classes build a model class; () for a class they do not build."""
    name = json.dumps(architecture).encode()
    if name not in whole_table("config_classes"):
        return ()
    lines = (line for line in whole_table("config_classes").splitlines() if name in line and b'"models": ' in line)
    return tuple(
        json.loads(line.partition(b": ")[0])
        for line in lines
        if architecture in json.loads(line.partition(b'"models": ')[2].partition(b"]")[0] + b"]")
    )


def required_rope_keys() -> dict[str, list[str]]:
    """Return the types of rotary embeddings: name → the keys that transformers requires."""
    keys: dict[str, list[str]] = read_line("config_classes", "rope_types")
    return keys


def known_layer_types() -> dict[str, frozenset[str]]:
    """Return the entries that transformers accepts in its lists of layer kinds, by the name of the list."""
    return {name: frozenset(read_line("config_classes", name)) for name in ("layer_types", "mlp_layer_types")}
