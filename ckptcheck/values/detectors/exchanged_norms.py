"""Finds norms of a layer that hold each other's weights.

The channels that a norm makes large change slowly from layer to layer, and differently for each place of a norm (before
attention, before the feed-forward block). So a norm resembles the norm in the same place of the neighbouring layers
more than norms in other places.
"""

from __future__ import annotations

from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.checkpoint.layout import Stack
from ckptcheck.values.detectors.channel_profiles import (
    clip_profile,
    correlate_profiles,
    count_stream_channels,
    read_norm_profile,
)
from ckptcheck.values.detectors.residual_axis import MIN_CHANNELS, can_judge_channels
from ckptcheck.values.detectors.roles import NORM

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

MIN_LAYERS = 6
"""Fewer layers do not show what is usual."""
MIN_DIFFERENCE = 0.2
"""By how much more norms in the median layer resemble norms in their own place than in others, and by how much less
exchanged ones do."""
MAX_NORMS = 8
"""Places of norms in a layer that are compared, each with each: 28 pairs."""
MAX_SHARE = 0.25
"""Share of the layers that may be exchanged: more are another kind of layer."""


class ExchangedNorms(msgspec.Struct, frozen=True):
    """Two norms of a layer; each resembles the other one of the neighbouring layers."""

    names: tuple[str, str]
    difference: float
    """By how much more they resemble the norms in their own place, as correlations; negative."""
    usual: float
    """The same in the median of the layers."""


def find_exchanged_norms(ckpt: Checkpoint) -> list[ExchangedNorms]:
    """Return the norms that hold each other's weights, in layers between the first and the last.

    It reads the norms again. Raises Skip if a file shrank since its values were read, OSError if reading fails.
    """
    found: list[ExchangedNorms] = []
    for stack in ckpt.layout.stacks.values():
        channels = count_stream_channels(ckpt, stack)
        if channels < MIN_CHANNELS or len(stack.layers) < MIN_LAYERS:
            continue
        profiles = _read_norms(ckpt, stack, channels)
        for first, second in combinations(sorted(profiles)[:MAX_NORMS], 2):
            differences = {
                layer: difference
                for layer in profiles[first]
                if (difference := _measure_difference(stack, profiles[first], profiles[second], layer)) is not None
            }
            if len(differences) < MIN_LAYERS - 2 or (usual := median(map(sum, differences.values()))) < MIN_DIFFERENCE:
                continue
            exchanged = _find_exchanged(stack, profiles[first], profiles[second], differences)
            if len(exchanged) <= MAX_SHARE * len(differences):
                found += [
                    ExchangedNorms((stack.full_name(layer, first), stack.full_name(layer, second)), difference, usual)
                    for layer, difference in sorted(exchanged.items())
                ]
    return found


def _read_norms(ckpt: Checkpoint, stack: Stack, channels: int) -> dict[str, dict[int, NDArray[np.float64]]]:
    """Return the profiles of the norms along the residual stream, by their places and layers."""
    norms: dict[str, dict[int, NDArray[np.float64]]] = {}
    for layer in sorted(stack.layers):
        for role in stack.layers[layer]:
            stats = ckpt.values.tensors.get(stack.full_name(layer, role))
            if (
                stats is not None
                and stats.shape == (channels,)
                and NORM.search(role)
                and can_judge_channels(ckpt, stats)
            ):
                profile = clip_profile(read_norm_profile(ckpt, stats.name))
                if profile.any():
                    norms.setdefault(role, {})[layer] = profile
    return norms


def _find_exchanged(
    stack: Stack,
    first: dict[int, NDArray[np.float64]],
    second: dict[int, NDArray[np.float64]],
    differences: dict[int, tuple[float, float]],
) -> dict[int, float]:
    """Return the layers whose norms are exchanged, and the sum of their differences.

    It takes the clearest layer first and corrects it, because its neighbours may be sound. It stops once it has more
    than MAX_SHARE of the layers.
    """
    first, second = dict(first), dict(second)
    left = {layer: both for layer, both in differences.items() if sum(both) <= -MIN_DIFFERENCE}
    found: dict[int, float] = {}
    while left and len(found) <= MAX_SHARE * len(differences):
        layer = min(left, key=lambda each: sum(left[each]))
        both = left.pop(layer)
        if max(both) >= 0:
            continue
        found[layer] = sum(both)
        first[layer], second[layer] = second[layer], first[layer]
        for near in left.keys() & {layer - 1, layer + 1}:
            again = _measure_difference(stack, first, second, near)
            if again is None or sum(again) > -MIN_DIFFERENCE:
                del left[near]
            else:
                left[near] = again
    return found


def _measure_difference(
    stack: Stack, first: dict[int, NDArray[np.float64]], second: dict[int, NDArray[np.float64]], layer: int
) -> tuple[float, float] | None:
    """Return by how much more each norm resembles its own place in neighbouring layers; None beside other kinds."""
    beside = (layer - 1, layer + 1)
    if not {*beside, layer} <= first.keys() & second.keys():
        return None
    if any(stack.layers[near] != stack.layers[layer] for near in beside):
        return None
    own = [sum(correlate_profiles(norm[layer], norm[near]) for near in beside) / 2 for norm in (first, second)]
    other = [
        sum(correlate_profiles(norm[layer], foreign[near]) for near in beside) / 2
        for norm, foreign in ((first, second), (second, first))
    ]
    return own[0] - other[0], own[1] - other[1]
