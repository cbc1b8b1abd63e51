"""What transformers itself writes for each architecture it knows: a table taken from it, see fixtures/learn_architectures.py."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.layout import INDEX


@cache
def _facts() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((Path(__file__).parent / "architectures.json").read_bytes())
    return facts


def transformers_version() -> str:
    """The version of transformers that the table was taken from."""
    return str(_facts()["transformers"])


def tied_by_default(architecture: str | None) -> bool | None:
    """Whether an architecture ties its head where config.json does not say; None if it is unknown."""
    found = _facts()["architectures"].get(architecture)
    return None if found is None else bool(found["tied_by_default"])


def can_tie(architecture: str | None) -> bool | None:
    """Whether an architecture ties its head at all, whatever the config says; None if it is unknown."""
    found = _facts()["architectures"].get(architecture)
    return None if found is None else bool(found["can_tie"])


@dataclass(frozen=True)
class KnownNames:
    """The modules of one architecture, numbers written {}: ``model.layers.{}.self_attn.q_proj``."""

    architecture: str
    modules: frozenset[str]
    bases: frozenset[str]

    @staticmethod
    def of(config: Config | None) -> KnownNames | None:
        """Return the names of a config's architecture; None if it is unknown or brings code of its own."""
        if config is None or config.architecture is None or "auto_map" in config.value:
            return None
        return _known(config.architecture)

    @staticmethod
    def module(tensor: str) -> str:
        """Return the module of a tensor: numbers written {}, the last part dropped."""
        return INDEX.sub("{}", tensor).rpartition(".")[0]

    def has(self, module: str) -> bool:
        """Whether transformers knows the module, also when it was saved without the head around the model."""
        return module in self.modules or any(f"{base}.{module}" in self.modules for base in self.bases)


@cache
def _known(architecture: str) -> KnownNames | None:
    found = _facts()["architectures"].get(architecture)
    if found is None:
        return None
    modules = frozenset(found["modules"])
    return KnownNames(architecture, modules, frozenset(module.partition(".")[0] for module in modules))
