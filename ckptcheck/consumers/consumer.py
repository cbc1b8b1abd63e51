"""A consumer: everything that ckptcheck knows about one program that loads a checkpoint, at one version.

docs/adding-a-consumer.md shows how to add one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.consumers.base import ConsumerInput, DecideModule, Module
from ckptcheck.consumers.entries import EntryList
from ckptcheck.consumers.structures import ParameterStructures, StructureTable

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint


class QuantizationPolicy(msgspec.Struct, frozen=True, eq=False):
    """A quantization config as one consumer reads it."""

    decide: DecideModule
    lists: Mapping[str, EntryList] = msgspec.field(default_factory=dict)
    """Key of each list in the config → its entries."""


ReadConfig = Callable[[ConsumerInput], QuantizationPolicy]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Consumer:
    """All facts about one consumer. Other modules never branch on the consumer's name; they ask for a fact."""

    name: str
    """As ``--consumers`` and the report have it."""
    title: str
    """As sentences have it: "vLLM"."""
    version: str
    """The version whose code these facts are taken from."""
    read_config: ReadConfig
    """Reads a quantization config. Raises ConsumerError if the consumer raises, UnknownBehavior for a method that is not
    modelled."""
    structures: StructureTable | ParameterStructures
    """The modules that the consumer builds for an architecture, and the checkpoint's modules that each one loads."""
    missing_parameter_effect: str
    """What the consumer does with a tensor without a parameter, as a predicate with ``{tensor}``."""
    is_default: bool = False
    """Whether a scan evaluates it if the user names no consumers."""
    stops_at_unknown_tensors: bool = False
    """Whether its loader raises on every tensor without a parameter. If that depends on the architecture, the table of
    structures has it for each module."""
    guessed_parameter_effect: str | None = None
    """`missing_parameter_effect` for an architecture that the table of structures lacks, if it differs."""
    casts_same_name: bool = True
    """Whether it copies a tensor into the parameter of the same name, whatever dtype the two have."""
    weight_files: Callable[[Checkpoint], Collection[str]] | None = None
    """The weight files that it reads; None if it loads another checkpoint (a trainer that sends weights)."""
    sends_weights: bool = False
    """Whether it is a trainer that packs weights and sends them to an engine; it is compared with the engines."""
    matches_parameters: bool = False
    """Whether entries match the names of parameters (``….weight``), not of modules."""
    sync_effect: str | None = None
    """What an engine does with a tensor from a trainer without a parameter, as a predicate; None if no trainer sends weights
    to it."""

    @property
    def label(self) -> str:
        """The name with the version, as messages have it."""
        return f"{self.name} {self.version}"

    def stops_at(self, module: Module) -> bool:
        """Whether it raises on a tensor of this module without a parameter."""
        return self.stops_at_unknown_tensors or module.rejects_unknown_tensors

    def describe_missing_parameter(self, module: Module, tensor: str) -> str:
        """Return what it does with a tensor of this module without a parameter, as a predicate."""
        if module.is_guess and self.guessed_parameter_effect is not None:
            return self.guessed_parameter_effect.format(tensor=tensor)
        if self.stops_at(module):
            return f"stops at {tensor}"
        return self.missing_parameter_effect.format(tensor=tensor)
