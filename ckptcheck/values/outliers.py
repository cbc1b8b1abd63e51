"""Tensors whose largest magnitude is out of all proportion to that of their siblings, or of the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.tensor import PLAIN
from ckptcheck.values.roles import is_matrix, is_norm, is_scale, template, vital
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

FACTOR, FACTOR_WITHOUT_SIBLINGS = 10_000, 1_000_000
LEAST = 10_000.0
"""Without siblings nothing smaller is absurd: what the model's matrices hold says less of a tensor than its siblings do."""
FAMILY = 3
"""Siblings whose median says what is usual."""
WEIGHTS = ("weight", "proj")
"""How the names of weights end. Without siblings only those are judged: tables, masks and bounds hold what they like."""


@dataclass(frozen=True)
class Outlier:
    """A tensor that holds an absurd value. usual: the magnitude beside which it is, of what `beside` says."""

    stats: TensorStats
    usual: float
    beside: str


def outliers(ckpt: Checkpoint) -> Iterator[Outlier]:
    """Yield the matrices, norms and biases whose largest magnitude is absurd; reads nothing beyond the statistics."""
    families: dict[str, list[TensorStats]] = {}
    biases: dict[str, list[TensorStats]] = {}
    for name, stats in ckpt.values.tensors.items():
        if (is_matrix(stats) or is_norm(stats)) and not is_scale(name):
            families.setdefault(template(name), []).append(stats)
        elif _is_bias(stats):
            biases.setdefault(template(name), []).append(stats)
    magnitudes = [stats.absmax for alike in families.values() for stats in alike if is_matrix(stats)]
    model = median(magnitudes) if len(magnitudes) >= FAMILY else 0.0
    alone = {*vital(ckpt), *ckpt.anatomy.scores}
    for alike in families.values():
        usual = median(stats.absmax for stats in alike) if len(alike) >= FAMILY else 0.0
        for stats in alike:
            if usual and stats.absmax > FACTOR * usual:
                yield Outlier(stats, usual, "in its sibling layers")
            elif not usual and (stats.name in alone or stats.name.endswith(WEIGHTS)):
                yield from _beyond_the_model(stats, model)
    rows = {ckpt.values.tensors[name].shape[0] for name in vital(ckpt) if name in ckpt.values.tensors}
    for alike in biases.values():
        usual = median(stats.absmax for stats in alike) if len(alike) >= FAMILY else 0.0
        for stats in alike:
            if stats.shape[-1] in rows:
                continue  # what is added to logits may forbid a token
            if not usual:
                yield from _beyond_the_model(stats, model)
            elif stats.absmax > FACTOR * max(usual, model) and stats.absmax > LEAST:  # many biases hardly leave zero
                yield Outlier(stats, usual, "in its sibling layers")


def _beyond_the_model(stats: TensorStats, model: float) -> Iterator[Outlier]:
    if model and stats.absmax > max(LEAST, FACTOR_WITHOUT_SIBLINGS * model):
        yield Outlier(stats, model, "in the model's matrices")


def _is_bias(stats: TensorStats) -> bool:
    """Whether it is added to something: one number for each output, or for each of each expert; attention's sinks too."""
    return (
        stats.dtype in PLAIN
        and len(stats.shape) in (1, 2)
        and stats.name.endswith(("bias", ".sinks"))
        and not stats.name.endswith("masked_bias")
    )
