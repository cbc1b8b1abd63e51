"""Computes profiles from the norms of a matrix's channels, and how well one profile follows others.

Training makes some channels large and others small, along the residual stream and inside each block, and every matrix that reads or
writes a channel shows it. A profile holds, for each sampled channel, the logarithm of the mean square of its row or
column, less the mean over the channels.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.layout import Stack
from ckptcheck.values.channel_sample import choose_channels
from ckptcheck.values.detectors.matrix_samples import read_rows
from ckptcheck.values.detectors.roles import NORM

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

MAX_DEVIATION = 5
"""Deviations from the median beyond which a channel counts as this far: a few channels of a trained model are so large that they
alone would decide any fit."""


def count_stream_channels(ckpt: Checkpoint, stack: Stack) -> int:
    """Return the width of the residual stream, the most common length of the norms in the layers; 0 without norms."""
    lengths = Counter(
        ckpt.tensors[name].shape[0]
        for layer, roles in stack.layers.items()
        for role in roles
        if NORM.search(role) and (name := stack.full_name(layer, role)) in ckpt.tensors
        and len(ckpt.tensors[name].shape) == 1
    )  # fmt: skip
    return max(lengths, key=lambda length: (lengths[length], length), default=0)


def read_norm_profile(ckpt: Checkpoint, name: str) -> NDArray[np.float64]:
    """Return the profile of the sampled weights of a norm. Raises Skip if its file shrank, OSError if reading fails."""
    import numpy as np

    stats = ckpt.values.tensors[name]
    channels = stats.shape[0]
    weights = read_rows(ckpt, stats, np.arange(channels), np.arange(1))[choose_channels(channels), 0]
    return centre_profile(np.log(np.abs(weights) + 1e-3 * stats.absmax))


def take_profile(squares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the logarithms of the mean squares of some channels, less their mean; zeros if one is not finite."""
    import numpy as np

    return centre_profile(np.log(np.maximum(squares, 1e-6 * squares.max() + 1e-300)))


def centre_profile(profile: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a profile less its mean; zeros if a value is not finite: an absurd number, which VAL006 reports."""
    import numpy as np

    if not np.isfinite(profile).all():
        return np.zeros_like(profile)
    centred: NDArray[np.float64] = profile - profile.mean()
    return centred


def clip_profiles(profiles: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return [profile, channel] in robust deviations from each one's median, none beyond MAX_DEVIATION, less its mean."""
    import numpy as np

    differences = profiles - _take_medians(profiles)
    deviations = 1.4826 * _take_medians(np.abs(differences))  # of a normal distribution
    clipped = np.clip(differences / np.where(deviations, deviations, 1.0), -MAX_DEVIATION, MAX_DEVIATION)
    centred: NDArray[np.float64] = clipped - clipped.mean(axis=1, keepdims=True)
    return centred


def clip_profile(profile: NDArray[np.float64]) -> NDArray[np.float64]:
    """Like `clip_profiles`, for one profile."""
    clipped: NDArray[np.float64] = clip_profiles(profile[None])[0]
    return clipped


def _take_medians(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return [row, 1]: the median of each row. numpy.median loads numpy.ma, which takes longer than all profiles of a model."""
    import numpy as np

    ordered, number = np.sort(values, axis=1), values.shape[1]
    medians: NDArray[np.float64] = (ordered[:, (number - 1) // 2, None] + ordered[:, number // 2, None]) / 2
    return medians


def correlate_profiles(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return Pearson's correlation; 0 if one of the two is constant, or not finite."""
    first, second = centre_profile(first), centre_profile(second)
    scale = float((first @ first) * (second @ second)) ** 0.5
    return float(first @ second) / scale if scale else 0.0


def compute_adjusted_r2(profiles: NDArray[np.float64], references: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of each profile's variance that references explain, beyond the share of as many random ones.

    profiles: [profile, channel], each with mean zero. references: [reference, channel], with mean zero.
    """
    import numpy as np

    number, channels = references.shape
    totals = np.einsum("pc,pc->p", profiles, profiles)
    if channels <= number + 1 or not number:
        return np.zeros(len(profiles))
    products = references @ references.T
    # References that are multiples of each other leave nothing to divide by.
    products += np.eye(number) * (1e-9 * np.trace(products) + 1e-300)
    shares = references @ profiles.T
    explained = (shares * np.linalg.solve(products, shares)).sum(axis=0)
    unexplained = 1 - explained / np.where(totals, totals, 1.0)
    adjusted: NDArray[np.float64] = 1 - unexplained * (channels - 1) / (channels - number - 1)
    return np.where(totals > 0, adjusted, 0.0)
