"""What transformers writes for each architecture it knows: a table that fixtures/learn_architectures.py generates from it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.checkpoint.packing import PACKED
from ckptcheck.checkpoint.parameters_table import find_served


@cache
def _facts() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((Path(__file__).parent / "architectures.json").read_bytes())
    return facts


def transformers_version() -> str:
    """Return the version of transformers that the table was generated from."""
    return str(_facts()["transformers"])


def tied_by_default(architecture: str | None) -> bool | None:
    """Whether an architecture ties its head when config.json does not say; None for an unknown architecture."""
    facts = _facts()["architectures"].get(architecture)
    return None if facts is None else bool(facts["tied_by_default"])


def can_tie(architecture: str | None) -> bool | None:
    """Whether an architecture can tie its head at all, whatever the config says; None for an unknown architecture."""
    facts = _facts()["architectures"].get(architecture)
    return None if facts is None else bool(facts["can_tie"])


@dataclass(frozen=True)
class KnownModules:
    """The modules of one architecture, with {} for each number: ``model.layers.{}.self_attn.q_proj``."""

    architecture: str
    modules: frozenset[str]
    """Full names of the modules."""
    bases: frozenset[str]
    """First parts of those names, such as ``model``."""

    @staticmethod
    def of(config: Config | None) -> KnownModules | None:
        """Return the modules of a config's architecture; None if it is unknown, renamed or remote code (``auto_map``)."""
        if config is None or config.architecture is None or "auto_map" in config.value or find_served(config):
            return None
        return _known(config.architecture)

    @staticmethod
    def module(tensor: str) -> str:
        """Return the module that a tensor belongs to, with {} for each number and without the last part of the name."""
        return INDEX.sub("{}", PACKED.sub("weight", tensor)).rpartition(".")[0]

    def has(self, module: str) -> bool:
        """Whether transformers knows the module, with or without the base prefix (a model saved without its head)."""
        return module in self.modules or any(f"{base}.{module}" in self.modules for base in self.bases)


@cache
def _known(architecture: str) -> KnownModules | None:
    facts = _facts()["architectures"].get(architecture)
    if facts is None:
        return None
    modules = frozenset(facts["modules"])
    return KnownModules(architecture, modules, frozenset(module.partition(".")[0] for module in modules))
