"""Gives, for an architecture, the config fields that decide the shape of each tensor, and the switches that add tensors.

fixtures/learn_weights.py generates the table from transformers, with one line for each architecture.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import msgspec

from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.decoder_families import family_of
from ckptcheck.checkpoint.layer_kinds import RULES as LAYER_RULES
from ckptcheck.checkpoint.layer_kinds import LayerRule
from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.checkpoint.parameters_table import find_served
from ckptcheck.checkpoint.resolved_config import ResolvedConfig, Setting
from ckptcheck.checkpoint.shape_formula import choose_size, evaluate_choices, fields_of_formula, find_place

_LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForMaskedLM")
"""Suffixes of language model classes; the table has one such class for each model type."""
_CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")
"""Suffixes of classifiers; the table has one for a model type without a language model class."""
_WITHOUT_HEADS = ("ForMaskedLM", *_CLASSIFIERS)
"""Suffixes of classes whose heads the table cannot describe: releases store them in several ways, or they follow the labels."""
_NOT_TEXT = re.compile(r"For(Image|OpticalFlow|Multimodal)")
"""Names of classes that read other inputs than the language model of their model type."""

_ATTENTION = re.compile(r"\.self_attn\.[qkvo]_proj\.weight$")
_DENSE = {"mlp.gate_proj": "{0},{1}", "mlp.up_proj": "{0},{1}", "mlp.down_proj": "{1},{0}"}
"""Shapes of a dense feed-forward block, for an architecture whose tiny model has experts in every layer."""


class Switch(msgspec.Struct, frozen=True):
    """A setting that adds tensors: if it is true, or if it is a number and not null."""

    name: str
    on: frozenset[str]
    """The patterns of tensors that the model has only with it."""
    off: frozenset[str]
    """The patterns of tensors that the model has only without it."""
    is_nullable: bool = False
    """Whether it is a number or null, and not true or false."""
    is_on_at_zero: bool | None = None
    """Whether the number 0 turns it on, as any other number does; None if unknown."""
    word: str | None = None
    """The text that turns it on: the name of an activation function with numbers of its own."""

    def is_on(self, setting: Setting) -> bool | None:
        """Return whether a setting turns it on; None if unknown."""
        if self.word is not None:
            return setting.value == self.word if isinstance(setting.value, str) else None
        if self.is_nullable:
            if type(setting.value) is int and setting.value == 0:
                return self.is_on_at_zero
            is_number = type(setting.value) is int and setting.value > 0
            return True if is_number else False if setting.value is None and setting.source == "config" else None
        if setting.value is None and setting.source == "config":
            return False  # null is false in Python
        return setting.value if isinstance(setting.value, bool) else None


class LayerKinds(msgspec.Struct, frozen=True):
    """The rules by which layers have experts, and the modules by which the two kinds of layers differ."""

    by: tuple[tuple[LayerRule, tuple[str, ...]], ...]
    """The rules that the architecture follows, with the paths of the fields that each reads; the first one that is set decides."""
    experts: frozenset[str]
    """The modules within a layer that only layers with experts have, with {} for each number."""
    dense: frozenset[str]
    """The modules that only layers without experts have."""


@dataclass(frozen=True)
class WeightsTable:
    """The fields and switches that decide the tensors of one architecture; names of tensors have {} for each number."""

    architecture: str
    facts: Mapping[str, Any]
    """Its line of the table."""

    @staticmethod
    def of(config: Config | None) -> WeightsTable | None:
        """Return the table of a config's architecture; None if it was not learned, or if the repository's own code builds it."""
        if config is None or config.resolved is None or "auto_map" in config.value:
            return None
        # transformers builds by the model_type, whatever the architectures are.
        models = config.resolved.top.config_class.models
        if config.architecture is None:
            relative = _find_relative(models)
            return relative.without_names() if relative is not None else None
        # A class that serves another model_type reads other stored names, which were not learned.
        if config.architecture not in models or find_served(config) is not None:
            return None
        # A classifier has the layers of the language model of its model_type.
        if (own := _find(config.architecture)) is not None:
            found = own.without_heads() if config.architecture.endswith(_WITHOUT_HEADS) else own
            if config.architecture.endswith("ForMaskedLM"):  # the stored part of the head fits
                found = WeightsTable(own.architecture, {**found.facts, "shapes": own.shapes})
            return found.with_joining(config.resolved).with_switched(config.resolved)
        if _NOT_TEXT.search(config.architecture):  # it may have other input modules (Perceiver)
            return None
        relative = _find_relative(models)
        return relative.without_heads() if relative is not None else None

    @staticmethod
    def of_layers(config: Config | None) -> WeightsTable | None:
        """Return the table for the shapes of stored tensors, also for an unknown class on the layers of a common decoder family.

        Reward models and draft models name such classes. The table then includes the attention biases that switches add.
        """
        table = WeightsTable.of(config)
        if table is None and family_of(config) is not None and config is not None and "auto_map" not in config.value:
            models = config.resolved.top.config_class.models if config.resolved is not None else ()
            relative = _find_relative(models)
            table = relative.without_heads() if relative is not None else None
        return table.with_switched_parts() if table is not None else None

    def with_switched_parts(self) -> WeightsTable:
        """Return the table with the shapes of parts that the tiny model has only with other settings."""
        shapes = dict(self.shapes)
        for pattern, formulas in self.shapes.items():
            if _ATTENTION.search(pattern):
                shapes.setdefault(f"{pattern.removesuffix('weight')}bias", formulas.partition(",")[0])
        stacks = {pattern.partition(".self_attn.")[0] for pattern in shapes if ".{}.self_attn." in pattern}
        width = next((name for name in self.sizes if name.rpartition(".")[2] == "hidden_size"), None)
        if self.layer_kinds is not None and width is not None and len(stacks) == 1:
            inner = f"{width.removesuffix('hidden_size')}intermediate_size"
            (stack,) = stacks
            for module in self.layer_kinds.dense & _DENSE.keys():
                shapes.setdefault(f"{stack}.{module}.weight", _DENSE[module].format(inner, width))
        return WeightsTable(self.architecture, {**self.facts, "shapes": shapes})

    def with_joining(self, resolved: ResolvedConfig) -> WeightsTable:
        """Return the table with the shapes of the modules that join encoders and language model, if they hold for the config.

        They hold if the sub-configs have the class's default types, and if the model reads one layer of an encoder, not several.
        """
        joining = self.facts.get("joining", {})
        settings = (resolved.at(path) for path in joining.get("scalars", ()))
        if not joining or resolved.other_parts or any(each is None or type(each.value) is not int for each in settings):
            return self
        return WeightsTable(self.architecture, {**self.facts, "shapes": {**self.shapes, **joining["shapes"]}})

    def with_switched(self, resolved: ResolvedConfig) -> WeightsTable:
        """Return the table with the shapes that the switches of the config choose."""
        chosen = dict(self.shapes)
        for pattern, found in self.facts.get("switched_shapes", {}).items():
            settings = [resolved.at(path) for path in found["by"]]
            values = [setting.value if setting is not None else None for setting in settings]
            formulas = found["formulas"].get(",".join("true" if value else "false" for value in values))
            if formulas is not None and pattern in chosen and all(isinstance(value, bool) for value in values):
                chosen[pattern] = formulas
        return WeightsTable(self.architecture, {**self.facts, "shapes": chosen})

    def without_heads(self) -> WeightsTable:
        """Return the part that another model of the same config class shares: the tensors under the names of the layers."""
        bases = {pattern.partition(".")[0] for pattern in self.shapes if ".{}." in pattern}

        def has_base(pattern: str) -> bool:
            return pattern.partition(".")[0] in bases

        switches = {
            name: {
                key: [*filter(has_base, value)] if isinstance(value, list) else value for key, value in found.items()
            }
            for name, found in self.facts.get("switches", {}).items()
        }
        kept = {
            "shapes": {pattern: formulas for pattern, formulas in self.shapes.items() if has_base(pattern)},
            "required": [*filter(has_base, self.facts.get("required", ()))],
            "switches": switches,
        }
        return WeightsTable(self.architecture, {**self.facts, **kept})

    def without_names(self) -> WeightsTable:
        """Return the part that every model of the config class shares, with a head or without: the shapes of stored tensors."""
        return WeightsTable(self.architecture, {"shapes": self.shapes})

    @property
    def shapes(self) -> Mapping[str, str]:
        """Pattern → its dimensions as formulas of config fields; ``?`` is unknown, ``a;b`` is one or the other."""
        shapes: Mapping[str, str] = self.facts.get("shapes", {})
        return shapes

    @cached_property
    def places(self) -> Mapping[str, str]:
        """Pattern that keeps the innermost module's number → its dimensions: ``merger.mlp.0.weight`` differs from ``mlp.2``."""
        places: Mapping[str, str] = self.facts.get("places", {})
        return places

    @cached_property
    def patterns_of_places(self) -> frozenset[str]:
        """The patterns for which `places` has several entries."""
        return frozenset(INDEX.sub("{}", place) for place in self.places)

    def find_formulas(self, name: str) -> str | None:
        """Return the dimensions of a tensor as formulas; None if unknown."""
        pattern = INDEX.sub("{}", name)
        if pattern in self.shapes and pattern in self.patterns_of_places:
            return self.places.get(find_place(name), self.shapes[pattern])
        return self.shapes.get(pattern)

    @cached_property
    def required(self) -> frozenset[str]:
        """The patterns of tensors that the tiny model has with the defaults of all switches."""
        return frozenset(self.facts.get("required", ()))

    @cached_property
    def modules(self) -> frozenset[str]:
        """The modules of the required tensors and of the switched ones: ``model.encoder.layers.{}.fc1``."""
        switched = {pattern for switch in self.switches for pattern in (*switch.on, *switch.off)}
        return frozenset(pattern.rpartition(".")[0] for pattern in self.required | switched)

    @cached_property
    def switches(self) -> tuple[Switch, ...]:
        """The switches that add tensors."""
        return tuple(
            Switch(
                name,
                frozenset(found["on"]),
                frozenset(found["off"]),
                bool(found.get("nullable")),
                found.get("zero"),
                found.get("value"),
            )
            for name, found in self.facts.get("switches", {}).items()
        )

    @property
    def depths(self) -> Mapping[str, str]:
        """Prefix of a stack → the config field with the number of its layers, if there are several stacks."""
        depths: Mapping[str, str] = self.facts.get("depths", {})
        return depths

    @cached_property
    def layer_kinds(self) -> LayerKinds | None:
        """The layers with experts; None if all layers of the architecture are alike, or if it follows no known rule."""
        facts = self.facts.get("layers")
        if not facts:
            return None
        rules = {(rule.name, rule.fields): rule for rule in LAYER_RULES}
        by = tuple(
            (rules[name, tuple(path.rpartition(".")[2] for path in paths)], tuple(paths))
            for name, *paths in facts["by"]
        )
        experts, dense = (frozenset(part.rpartition(".")[0] for part in facts[key]) for key in ("experts", "dense"))
        return LayerKinds(by, experts - dense, dense - experts)

    @cached_property
    def sizes(self) -> frozenset[str]:
        """The config fields that decide the shape of some tensor."""
        return frozenset(name for formulas in self.shapes.values() for name in fields_of_formula(formulas))

    def rounds_heads(self, heads: str) -> bool:
        """Whether the model accepts any number of heads, because it rounds the head width down and projects back from it."""
        return any(f"/{heads}*{heads}" in formulas for formulas in self.shapes.values())

    def expect_shape(
        self, name: str, size_of: Callable[[str], int | None], stored: tuple[int, ...]
    ) -> tuple[int | None, ...] | None:
        """Return the shape that the model gives a tensor; None for an unknown tensor or dimension.

        size_of: the value of a config field, None if unknown.
        stored: its shape. If a dimension differs from layer to layer, the stored size counts if it is one of the possible ones.
        """
        formulas = self.find_formulas(name)
        if formulas is None:
            return None
        return tuple(
            choose_size([evaluate_choices(one, size_of)[0] for one in choices.split(";")], stored[axis : axis + 1])
            for axis, choices in enumerate(formulas.split(","))
        )

    def fields_of(self, name: str, axis: int, size_of: Callable[[str], int | None]) -> list[str]:
        """Return the config fields that decide a dimension of a tensor."""
        pattern = INDEX.sub("{}", name)
        choices = (self.find_formulas(name) or "").split(",")[axis].split(";")
        found = list(
            dict.fromkeys(field for one in choices for field in fields_of_formula(evaluate_choices(one, size_of)[1]))
        )
        return [*found, *self._list_switches(pattern, axis)]

    def _list_switches(self, pattern: str, axis: int) -> list[str]:
        """Return the switches that choose between formulas for a dimension."""
        switched = self.facts.get("switched_shapes", {}).get(pattern)
        if switched is None or len({formulas.split(",")[axis] for formulas in switched["formulas"].values()}) < 2:
            return []
        return [*switched["by"]]


def _find_relative(models: tuple[str, ...]) -> WeightsTable | None:
    """Return the table of the language model among the classes of one config, else of a classifier, or None."""
    for ends in (_LANGUAGE_MODELS, _CLASSIFIERS):
        for name in models:
            if name.endswith(ends) and (table := _find(name)) is not None:
                return table
    return None


@cache
def _find(architecture: str) -> WeightsTable | None:
    table = (Path(__file__).parent / "weights.json").read_bytes()
    opening = f"\n{json.dumps(architecture)}: ".encode()
    start = table.find(opening)
    if start < 0:
        return None
    start += len(opening)
    return WeightsTable(architecture, json.loads(table[start : table.index(b"\n", start)].removesuffix(b",")))
