"""What a model of transformers refuses in its config although the class of the config accepts it: a part of the table of weights.

`fixtures/learn_refusals.py` learns it from the models: each value is tried, and a model that is not built, or does not compute,
refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

RefusedKind = Literal["null", "zero", "negative", "one", "untyped", "list", "float"]
"""Kinds of values; untyped: a text or an object in place of a number that no class declares."""


@dataclass(frozen=True)
class RefusedValues:
    """What the model of one architecture refuses. Fields are given by their paths: ``text_config.hidden_size``."""

    facts: Mapping[str, Any]
    """Kind of refusal → the fields, as the table has them."""

    @property
    def rope_parts(self) -> frozenset[str]:
        """The sub-configs, with a dot at the end, whose unknown types of rotary embeddings the model refuses."""
        return frozenset(f"{part}." for part in self.facts.get("rope_types", ()))

    @property
    def default_rope_parts(self) -> frozenset[str]:
        """The sub-configs, with a dot at the end, for which the model computes no rotary embedding but the default one."""
        return frozenset(f"{part}." if part else "" for part in self.facts.get("only_default_rope", ()))

    @property
    def most(self) -> Mapping[str, str]:
        """Number → what it is at most for the model to compute: another setting, or ``width/heads``."""
        most: Mapping[str, str] = self.facts.get("most", {})
        return most

    @property
    def least(self) -> Mapping[str, str]:
        """Number of layers → what it is at least for the model to compute: another number of layers."""
        least: Mapping[str, str] = self.facts.get("least", {})
        return least

    def rotates_whole_heads(self, part: str, kind: str) -> bool:
        """Whether the model stops where a part of each head is rotated, by rotary embeddings of a kind.

        part: the JSON path of the sub-config, with a dot at the end; empty for the top level. kind: ``rope_type``.
        """
        whole = self.facts.get("whole_rotary", {}).get(part.removesuffix("."), ())
        return ("default" if kind == "default" else "others") in whole

    @property
    def divides(self) -> Mapping[str, str]:
        """Number → the setting that it has to divide for the model to compute."""
        divides: Mapping[str, str] = self.facts.get("divides", {})
        return divides

    @property
    def checked_activations(self) -> tuple[str, ...]:
        """The fields with the name of an activation that the model looks up; it reads no other."""
        return tuple(self.facts.get("x", ()))

    def list_refused(self, kind: RefusedKind) -> tuple[str, ...]:
        """Return the fields for which the model refuses a kind of value, although the class of its config accepts it."""
        return tuple(self.facts.get(kind, ()))

    @property
    def least_lengths(self) -> Mapping[str, int]:
        """List → how many entries the model needs at least."""
        lengths: Mapping[str, int] = self.facts.get("shorter", {})
        return lengths

    @property
    def layer_lists(self) -> Mapping[str, str]:
        """List of which the model reads an entry for each layer → the field that says how many layers there are."""
        lists: Mapping[str, str] = self.facts.get("per_layer", {})
        return lists

    @property
    def accepted_entries(self) -> Mapping[str, tuple[str, ...]]:
        """List of layer kinds that the class checks in its own way → the words that the model takes."""
        return {path: tuple(words) for path, words in self.facts.get("entries", {}).items()}

    @property
    def needed_parts(self) -> tuple[str, ...]:
        """The sub-configs without which the model is not built: it has no defaults for what is in them."""
        return tuple(self.facts.get("empty", ()))

    @property
    def accepted_names(self) -> Mapping[str, tuple[str, ...]]:
        """Field that chooses by a name, and is no activation's by its own name → the names that the model takes."""
        return {path: tuple(names) for path, names in self.facts.get("names", {}).items()}

    @property
    def widths(self) -> tuple[tuple[str, str, str], ...]:
        """Undeclared width of the heads, hidden size, number of heads: the first is the second by the third, or the model stops."""
        return tuple((own, width, heads) for own, width, heads in self.facts.get("widths", ()))

    @property
    def copies(self) -> Mapping[str, str]:
        """Number that the config class computes where config.json has none → the setting that it equals, or the model stops."""
        copies: Mapping[str, str] = self.facts.get("copies", {})
        return copies

    @property
    def padding(self) -> tuple[str, str] | None:
        """The field with the token of padding and the one with the rows of the embedding that must have it."""
        found = self.facts.get("padding")
        return (found[0], found[1]) if found else None
