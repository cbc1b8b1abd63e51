"""Finds checkpoints and stacks of layers whose every matrix is zero, or one number: memory that nothing wrote to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.linter.evidence import remembered
from ckptcheck.values.detectors.roles import is_matrix, is_packed, is_scale, name_pattern, starts_at_zero
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

MIN_MATRICES = 2
"""Fewer matrices do not make a checkpoint blank; nor do fewer kinds of matrices, or layers, a stack."""


class BlankWeights(msgspec.Struct, frozen=True):
    """A checkpoint or a stack of layers in which each matrix holds one number only."""

    prefix: str | None
    """The prefix of the stack; None for the whole checkpoint."""
    matrices: tuple[TensorStats, ...]
    """All its matrices."""
    tensors: tuple[str, ...] = ()
    """The tensors of the whole checkpoint; () for a stack."""
    num_filled: int = 0
    """How many of them are no matrices and not zero; 0 for a stack."""

    @property
    def is_zero(self) -> bool:
        """Whether the number is zero in each matrix."""
        return all(stats.zero for stats in self.matrices)

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors that are blank."""
        is_whole = self.is_zero and not self.num_filled
        return self.tensors if self.tensors and is_whole else tuple(stats.name for stats in self.matrices)


@remembered
def find_blank_weights(ckpt: Checkpoint) -> list[BlankWeights]:
    """Return the whole checkpoint if each of its matrices holds one number only, else the stacks of layers that do.

    Scales, and tensors that start at zero by design, count neither way. A stack needs two layers and two kinds of matrices, for
    gates and adapters of one kind often start at zero. It uses the statistics and reads nothing. Raises Skip if values are not
    read.
    """
    loaded = [stats for name, stats in ckpt.values.tensors.items() if name in ckpt.tensor_to_file]
    blank = [stats for stats in loaded if _is_blank(stats) and _is_weight_matrix(stats)]
    if len(blank) < MIN_MATRICES:
        return []
    names = {stats.name for stats in blank}
    if all(stats.name in names or not _is_weight_matrix(stats) for stats in loaded):
        num_filled = sum(stats.name not in names and not stats.zero for stats in loaded)
        return [BlankWeights(None, tuple(blank), tuple(stats.name for stats in loaded), num_filled)]
    stacks: dict[str, list[TensorStats]] = {}
    layers: dict[str, set[str]] = {}
    for stats in blank:
        prefix, *numbered = INDEX.split(stats.name, 1)
        if numbered:
            stacks.setdefault(prefix, []).append(stats)
            layers.setdefault(prefix, set()).add(numbered[0])
    stacks = {
        prefix: matrices
        for prefix, matrices in stacks.items()
        if len(layers[prefix]) >= MIN_MATRICES and len({name_pattern(each.name) for each in matrices}) >= MIN_MATRICES
    }
    for stats in loaded if stacks else ():
        if stats.name not in names and _is_weight_matrix(stats):
            stacks.pop(INDEX.split(stats.name, 1)[0], None)
    return [BlankWeights(prefix.rstrip("."), tuple(matrices)) for prefix, matrices in stacks.items()]


@remembered
def find_blank_tensors(ckpt: Checkpoint) -> frozenset[str]:
    """Return the tensors that `find_blank_weights` covers: one finding reports them all. Raises the same."""
    blank_weights = find_blank_weights(ckpt)
    if any(blank.prefix is None for blank in blank_weights):
        return frozenset(ckpt.values.tensors)
    prefixes = tuple(f"{blank.prefix}." for blank in blank_weights)
    if not prefixes:
        return frozenset()
    return frozenset(
        name
        for name, stats in ckpt.values.tensors.items()
        if name.startswith(prefixes) and (stats.zero or stats.constant)
    )


def _is_blank(stats: TensorStats) -> bool:
    return (stats.zero or stats.constant) and not (stats.nan or stats.inf)


def _is_weight_matrix(stats: TensorStats) -> bool:
    """Whether a tensor is a matrix that an initialiser or training fills with different numbers."""
    shaped = is_packed(stats) or (is_matrix(stats) and min(stats.shape) > 1)
    return shaped and not is_scale(stats.name) and not starts_at_zero(stats.name)
