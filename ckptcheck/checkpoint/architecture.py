"""What transformers writes for each architecture it knows: fixtures/learn_architectures.py generates the table from it.

fixtures/learn_written_keys.py generates a second table: the keys that two versions of transformers always write into the
config.json of a class, although no tensor shows their values. The versions between them are taken to write what both write.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.checkpoint.learned_table import read_line
from ckptcheck.checkpoint.packing import PACKED
from ckptcheck.checkpoint.parameters_table import find_served

VERSION_PARTS = 2
"""Parts of a version that count in the comparison (major, minor): a patch release writes the same keys."""


def tied_by_default(architecture: str | None) -> bool | None:
    """Whether an architecture ties its head if config.json does not say; None for an unknown architecture."""
    facts = _find(architecture)
    return None if facts is None else bool(facts["tied_by_default"])


def can_tie(architecture: str | None) -> bool | None:
    """Whether an architecture can tie its head at all, whatever the config says; None for an unknown architecture."""
    facts = _find(architecture)
    return None if facts is None else bool(facts["can_tie"])


def _find(architecture: str | None) -> dict[str, Any] | None:
    facts = read_line("architectures", architecture) if architecture is not None else None
    return facts if isinstance(facts, dict) else None


class KnownModules(msgspec.Struct, frozen=True):
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
    facts = _find(architecture)
    if facts is None:
        return None
    modules = frozenset(facts["modules"])
    return KnownModules(architecture, modules, frozenset(module.partition(".")[0] for module in modules))


def list_written_keys(model_type: str, version: tuple[int, ...]) -> tuple[str, ...]:
    """Return the keys that a version of transformers (major, minor, patch) writes for a model type; () if unknown."""
    since, until = (_parse(read_line("written_keys", bound)) for bound in ("since", "until"))
    if not (since <= version and version[:VERSION_PARTS] <= until[:VERSION_PARTS]):
        return ()
    return tuple(read_line("written_keys", model_type) or ())


def _parse(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
