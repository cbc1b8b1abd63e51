"""Finds tensors whose largest magnitude is out of all proportion to that of their siblings, or of the model."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.checkpoint.tensor import PLAIN
from ckptcheck.values.detectors.roles import find_vocabulary_tensors, is_matrix, is_norm, is_scale, name_pattern
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

FACTOR, FACTOR_WITHOUT_SIBLINGS = 10_000, 1_000_000
MIN_ABSURD_MAGNITUDE = 10_000.0
"""Without siblings no smaller magnitude is absurd: the model's other matrices say less about a tensor than its siblings."""
MIN_SIBLINGS = 3
"""The median of fewer siblings is not typical."""
WEIGHT_SUFFIXES = ("weight", "proj")
"""Endings of the names of weights. Without siblings only these are judged: tables, masks and bounds may hold any value."""


class Outlier(msgspec.Struct, frozen=True):
    """A tensor that holds an absurdly large value."""

    stats: TensorStats
    typical: float
    """The typical largest magnitude of the reference."""
    reference: str
    """The reference, as the message names it."""


def find_outliers(ckpt: Checkpoint) -> Iterator[Outlier]:
    """Yield the matrices, norms and biases whose largest magnitude is absurd. It uses only the statistics."""
    groups: dict[str, list[TensorStats]] = {}
    bias_groups: dict[str, list[TensorStats]] = {}
    magnitudes: list[float] = []
    for name, stats in ckpt.values.tensors.items():
        if ((matrix := is_matrix(stats)) or is_norm(stats)) and not is_scale(name):
            groups.setdefault(name_pattern(name), []).append(stats)
            if matrix:
                magnitudes.append(stats.absmax)
        elif _is_bias(stats):
            bias_groups.setdefault(name_pattern(name), []).append(stats)
    model_typical = median(magnitudes) if len(magnitudes) >= MIN_SIBLINGS else 0.0
    judged_alone = {*find_vocabulary_tensors(ckpt), *ckpt.components.score_head_tensors}
    for members in groups.values():
        typical = median(stats.absmax for stats in members) if len(members) >= MIN_SIBLINGS else 0.0
        for stats in members:
            if typical and stats.absmax > FACTOR * typical:
                yield Outlier(stats, typical, "its sibling layers")
            elif not typical and (stats.name in judged_alone or stats.name.endswith(WEIGHT_SUFFIXES)):
                yield from _iter_model_outliers(stats, model_typical)
    rows = {ckpt.values.tensors[name].shape[0] for name in find_vocabulary_tensors(ckpt) if name in ckpt.values.tensors}
    for members in bias_groups.values():
        typical = median(stats.absmax for stats in members) if len(members) >= MIN_SIBLINGS else 0.0
        for stats in members:
            # A bias that is added to logits may forbid a token.
            if stats.shape[-1] in rows:
                continue
            # Many biases hardly leave zero, so a bias has to exceed the matrices too.
            limit = max(MIN_ABSURD_MAGNITUDE, FACTOR * max(typical, model_typical))
            if not typical:
                yield from _iter_model_outliers(stats, model_typical)
            elif stats.absmax > limit:
                yield Outlier(stats, typical, "its sibling layers")


def _iter_model_outliers(stats: TensorStats, model_typical: float) -> Iterator[Outlier]:
    if model_typical and stats.absmax > max(MIN_ABSURD_MAGNITUDE, FACTOR_WITHOUT_SIBLINGS * model_typical):
        yield Outlier(stats, model_typical, "the model's matrices")


def _is_bias(stats: TensorStats) -> bool:
    """Whether a tensor is a bias: one number per output, or per output and expert; attention sinks count too."""
    return (
        stats.dtype in PLAIN
        and len(stats.shape) in (1, 2)
        and stats.name.endswith(("bias", ".sinks"))
        and not stats.name.endswith("masked_bias")
    )
