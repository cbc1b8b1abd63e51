"""What the norms of a matrix's channels show: profiles, and how well one follows others.

Training makes some channels large and others small, along the residual stream and inside each block, and every matrix that reads or
writes a channel shows it. A profile holds, for each sampled channel, the logarithm of the mean of the squares of its row or column,
less the mean of all.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.layout import Stack
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


def clip_profile(profile: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a profile in robust deviations from its median, none beyond MAX_DEVIATION, less its mean."""
    import numpy as np

    differences = profile - _median(profile)
    deviation = 1.4826 * _median(np.abs(differences))  # that of a normal distribution
    return centre_profile(np.clip(differences / (deviation or 1.0), -MAX_DEVIATION, MAX_DEVIATION))


def _median(values: NDArray[np.float64]) -> float:
    """Return the median. numpy.median loads numpy.ma, which takes longer than all profiles of a model."""
    import numpy as np

    ordered, number = np.sort(values), len(values)
    return float(ordered[(number - 1) // 2] + ordered[number // 2]) / 2


def correlate_profiles(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return Pearson's correlation; 0 if one of the two is constant, or not finite."""
    first, second = centre_profile(first), centre_profile(second)
    scale = float((first @ first) * (second @ second)) ** 0.5
    return float(first @ second) / scale if scale else 0.0


def compute_adjusted_r2(profile: NDArray[np.float64], basis: NDArray[np.float64]) -> float:
    """Return the share of a profile's variance that a basis explains beyond what as many random vectors would explain.

    profile: [channels], with mean zero. basis: [channels, references], orthonormal.
    """
    number, references = basis.shape
    total = float(profile @ profile)
    if not total or number <= references + 1:
        return 0.0
    explained = basis.T @ profile
    unexplained = 1 - float(explained @ explained) / total
    return float(1 - unexplained * (number - 1) / (number - references - 1))
