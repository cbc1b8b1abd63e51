"""Which parameters of the model the stored tensors fill, by the renamings that transformers applies to their names."""

from __future__ import annotations

import msgspec

from ckptcheck.checkpoint.architecture import KnownModules
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.checkpoint.packing import COMPANION, unquantized_name, unquantized_names
from ckptcheck.checkpoint.parameters_table import ParametersTable, Places, list_samples
from ckptcheck.linter.evidence import remembered


class StoredParameters(msgspec.Struct, frozen=True):
    """The parameters that a checkpoint fills; names have {} for each number."""

    table: ParametersTable
    places: Places
    packed: frozenset[str]
    """The modules whose weight a quantization stores in other tensors."""
    absent: frozenset[str]
    """The parameters that the model has with this config and that no stored tensor fills, in any layer."""
    given: frozenset[str]
    """The parameters that one setting of this config adds."""

    @staticmethod
    def of(ckpt: Checkpoint) -> StoredParameters | None:
        """Return which parameters are filled; None for a draft model, or if the table lacks the architecture."""
        return _find_stored(ckpt)

    @property
    def needed(self) -> frozenset[str]:
        """The parameters that the model has with this config, except in packed modules."""
        return frozenset(name for name in self.table.needs | self.given if name.rpartition(".")[0] not in self.packed)

    def is_read(self, known: KnownModules, name: str) -> bool:
        """Whether the architecture has a stored tensor's module under a name to which transformers renames it.

        NemotronH's `backbone.layers.0.mixer.experts.0.up_proj` becomes a part of `model.layers.0.mixer.experts`.
        """
        return any(known.has(known.module(target)) for target in self.table.name_parameters(name))

    def list_layers(self, prefix: str) -> set[int]:
        """Return the stored layers of a stack, as the built model names it."""
        inside = (
            found for name, found in self.places.items() if name.startswith(f"{prefix}.{{}}.") and found is not None
        )
        return set[int]().union(*inside)


@remembered
def _find_stored(ckpt: Checkpoint) -> StoredParameters | None:
    table = ParametersTable.of(ckpt.config)
    if table is None or ckpt.config is None or not ckpt.tensors or ckpt.is_mlx or ckpt.components.is_draft:
        return None
    samples = list_samples(ckpt.layout)
    places = table.find_places(ckpt.layout, {*samples, *unquantized_names(samples)})
    # The dot behind a module lets the number at its end be one, as in ffn.0 of CTRL.
    modules = (module for name in samples if (module := _packed_module(name)) is not None)
    packed = frozenset(INDEX.sub("{}", f"{module}.")[:-1] for module in modules)
    given = table.list_given(ckpt.config.resolved) if ckpt.config.resolved is not None else frozenset[str]()
    absent = frozenset(
        name for name in table.needs | given if name not in places and name.rpartition(".")[0] not in packed
    )
    return StoredParameters(table, places, packed, absent, given)


def _packed_module(name: str) -> str | None:
    """Return the module of a tensor that a quantization stores in place of, or beside, a plain weight."""
    module, _, last = name.rpartition(".")
    if ".weight." in name:
        return name.partition(".weight.")[0]
    return module if COMPANION.search(last) or unquantized_name(name) != name else None
