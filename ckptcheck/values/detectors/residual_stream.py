"""Finds matrices and norms that do not follow the residual stream: transposed, in another order, or of another layer.

Training makes some channels of the residual stream large and others small, and every matrix that reads or writes the stream shows
that: the norms of its columns (or rows) differ from channel to channel in a way that its neighbours predict. The neighbours
are the norms of the layer, its matrices that are not square, whose shape shows the axis of the stream, and those of the layers
beside it. A least-squares fit to them explains a share of the variance (R²).

- Of a square matrix the other axis counts heads, and the stream predicts nothing there. So R² is large along one axis and near
  zero along the other, and a transposed matrix has them exchanged.
- A matrix whose channels are in another order, or that belongs to another layer, follows nothing, although its siblings do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.checkpoint.layout import Stack
from ckptcheck.linter.evidence import remembered
from ckptcheck.values.detectors.channel_profiles import (
    clip_profiles,
    compute_adjusted_r2,
    count_stream_channels,
    read_norm_profile,
    take_profile,
)
from ckptcheck.values.detectors.dtype_mislabel import find_mislabelled
from ckptcheck.values.detectors.duplicate_tensors import find_equal_layers, find_equal_matrices
from ckptcheck.values.detectors.init_detection import find_init_groups
from ckptcheck.values.detectors.matrix_samples import FLOATS
from ckptcheck.values.detectors.middle_pieces import find_single_magnitudes
from ckptcheck.values.detectors.roles import NORM
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

READERS = re.compile(
    r"(^|[._])(q|k|v|query|key|value|q_proj|k_proj|v_proj|wq|wk|wv|q_lin|k_lin|v_lin|query_proj|key_proj|value_proj)\.weight$"
)
"""Names of matrices that read the residual stream."""
WRITERS = re.compile(
    r"(^|[._])(o_proj|out_proj|wo|out_lin|attn_out|attention\.output\.dense|attention\.dense|attn\.c_proj)\.weight$"
)
"""Names of matrices of attention that write the residual stream."""
EXPANDING = re.compile(
    r"(^|[._])(gate_proj|up_proj|gate_up_proj|fc1|fc_in|lin1|w1|w3|wi|c_fc|dense_h_to_4h|intermediate\.dense|intermediate_dense)\.weight$"
)
"""Names of matrices of a feed-forward block that read the residual stream. Their shape shows how the checkpoint stores matrices:
torch.nn.Linear as [outputs, inputs], GPT-2's Conv1D as [inputs, outputs]."""
SCALED = ("F8_E4M3", "I8")
"""dtypes that are read without their scale. If each row has a scale, its norm no longer shows anything, and fewer
transposed matrices are found. Scales of blocks make steps along both axes, the same in all matrices, so block-scaled
matrices are not judged."""
MIN_CHANNELS = 192
"""With fewer channels chance may look like a relation."""
MAX_REFERENCES = 24
"""Profiles that a matrix is compared with, those of its own layer first."""
FOLLOWS, INDEPENDENT = 0.2, 0.15
"""R² at or above which an axis of a square matrix follows the stream, and at or below which it does not."""
MIN_LAYERS, MAX_SHARE = 6, 0.25
"""Fewer layers do not show what is usual. If more than this share of them differ from the others, they are of another kind."""
USUALLY_FOLLOWS, HARDLY_FOLLOWS = 0.5, 0.1
"""R² of the same matrix in the layers: the lower bound for the median layer, and the upper bound for one that stands out."""

Profiles = dict[int, dict[str, "NDArray[np.float64]"]]
"""Layer → role of a norm or matrix → its profile along the residual stream; of a square matrix [2, channel]: rows and columns."""


class TransposedMatrix(msgspec.Struct, frozen=True):
    """A square matrix whose axes are exchanged."""

    name: str
    axis: int
    """The axis that follows the residual stream, and should not: 0 for rows, 1 for columns."""
    r2: tuple[float, float]
    """Adjusted R² of the norms of its rows and of its columns."""


class ScatteredMatrix(msgspec.Struct, frozen=True):
    """A matrix or norm that does not follow the residual stream, although it does in other layers."""

    name: str
    r2: float
    usual: float
    """R² in the median of the layers."""


@remembered
def find_transposed_matrices(ckpt: Checkpoint) -> list[TransposedMatrix]:
    """Return the square matrices of the layers that are stored transposed.

    It uses the samples of the value pass, and reads the norms again. Raises Skip if a file shrank since its values were
    read, OSError if reading fails.
    """
    import numpy as np

    transposed: list[TransposedMatrix] = []
    for stack, channels, profiles in _iter_stacks(ckpt):
        for layer, own in profiles.items():
            square = {role: profile for role, profile in own.items() if profile.ndim > 1}
            references = [
                profile
                for near in (layer, layer - 1, layer + 1)
                for profile in profiles.get(near, {}).values()
                if profile.ndim == 1
            ]
            if not square or not any(profile.ndim == 1 for profile in own.values()):
                continue
            fits = compute_adjusted_r2(np.concatenate([*square.values()]), np.stack(references[:MAX_REFERENCES]))
            for role, r2 in zip(square, fits.reshape(-1, 2).tolist(), strict=True):
                expected = _find_stream_axis(ckpt, stack, layer, role, channels)
                if expected is None:
                    continue
                right, wrong = r2[expected], r2[1 - expected]
                if wrong >= FOLLOWS and right <= min(INDEPENDENT, wrong / 3):
                    transposed.append(TransposedMatrix(stack.full_name(layer, role), 1 - expected, (r2[0], r2[1])))
    return transposed


@remembered
def find_scattered_matrices(ckpt: Checkpoint) -> list[ScatteredMatrix]:
    """Return the matrices and norms that do not follow the residual stream, while their siblings in other layers do.

    It does not judge the first and the last layer of a stack: the stream differs there. Reads and raises as
    `find_transposed_matrices`.
    """
    scattered: list[ScatteredMatrix] = []
    for stack, channels, profiles in _iter_stacks(ckpt):
        if len(stack.layers) < MIN_LAYERS:
            continue
        clipped = {layer: _clip_layer(ckpt, stack, layer, channels, own) for layer, own in profiles.items()}
        r2_by_role: dict[str, dict[int, float]] = {}
        for layer, own in clipped.items():
            matrices = [role for role in own if not NORM.search(role)]
            for roles in (matrices, *([role] for role in own.keys() - matrices)):
                for role, r2 in zip(roles, _measure_fits(clipped, layer, roles), strict=True):
                    r2_by_role.setdefault(role, {})[layer] = r2
        for role, by_layer in r2_by_role.items():
            usual, layers = median(by_layer.values()), sorted(by_layer)
            low = [layer for layer in layers if by_layer[layer] <= HARDLY_FOLLOWS]
            if len(layers) >= MIN_LAYERS and usual >= USUALLY_FOLLOWS and len(low) <= MAX_SHARE * len(layers):
                scattered += [
                    ScatteredMatrix(stack.full_name(layer, role), by_layer[layer], usual)
                    for layer in low
                    if layer not in (layers[0], layers[-1])
                ]
    explained = find_explained(ckpt) if scattered else set()
    return [matrix for matrix in scattered if matrix.name not in explained]


def find_explained(ckpt: Checkpoint) -> set[str]:
    """Return the tensors that follow nothing for a reason that another rule reports."""
    return {
        *(sample.name for group in find_init_groups(ckpt) for sample in group.at_init),
        *(name for copy in find_equal_matrices(ckpt) for name in copy.unit.names.values()),
        *(  # The neighbours of a repeated block of layers are the wrong ones.
            stack.full_name(layer, role)
            for stack in ckpt.layout.stacks.values()
            if find_equal_layers(ckpt)
            for layer, roles in stack.layers.items()
            for role in roles
        ),
        *(matrix.name for matrix in find_transposed_matrices(ckpt)),
        *(stats.name for stats in find_mislabelled(ckpt)),
        *find_single_magnitudes(ckpt),
    }


def _iter_stacks(ckpt: Checkpoint) -> Iterator[tuple[Stack, int, Profiles]]:
    """Yield the stacks that can be judged, with the width of their stream and the profiles of their layers."""
    for stack in ckpt.layout.stacks.values():
        channels = count_stream_channels(ckpt, stack)
        if channels >= MIN_CHANNELS:
            yield stack, channels, _read_profiles(ckpt, stack.prefix, channels)


@remembered
def _read_profiles(ckpt: Checkpoint, prefix: str, channels: int) -> Profiles:
    """Return the profiles of the norms and matrices of a stack, without constant ones."""
    import numpy as np

    stack = ckpt.layout.stacks[prefix]
    profiles: Profiles = {layer: {} for layer in sorted(stack.layers)}
    for layer, own in profiles.items():
        for role in sorted(stack.layers[layer]):
            stats = ckpt.values.tensors.get(stack.full_name(layer, role))
            if stats is None or not _can_judge(ckpt, stats):
                continue
            sample = ckpt.values.samples.get(stats.name)
            if stats.shape == (channels,) and NORM.search(role):
                profile = read_norm_profile(ckpt, stats.name)
            elif sample is not None and stats.shape == (channels, channels):
                profile = np.stack([take_profile(sample.rows), take_profile(sample.columns)])
            elif sample is not None and stats.shape.count(channels) == 1:
                profile = take_profile(sample.rows if stats.shape[0] == channels else sample.columns)
            else:
                continue
            if profile.any():
                own[role] = profile
    return profiles


def _can_judge(ckpt: Checkpoint, stats: TensorStats) -> bool:
    """Whether the norms of a matrix's channels, as stored, say something about its values."""
    scale = ckpt.tensors.get(f"{stats.name}_scale")
    is_plain = scale is not None and prod(scale.shape) in (1, stats.shape[0])
    return (
        stats.name in ckpt.tensor_to_file
        and (stats.dtype in FLOATS or (stats.dtype in SCALED and is_plain))
        and not (stats.zero or stats.constant or stats.nan or stats.inf)
    )


def _find_stream_axis(ckpt: Checkpoint, stack: Stack, layer: int, role: str, channels: int) -> int | None:
    """Return the axis of the residual stream by a matrix's name and the layout of its layer; None if unclear."""
    reads = bool(READERS.search(role))
    if not reads and not WRITERS.search(role):
        return None
    for other in stack.layers[layer]:
        tensor = ckpt.tensors.get(stack.full_name(layer, other))
        if tensor is not None and EXPANDING.search(other) and tensor.shape.count(channels) == 1:
            return 1 if reads == (tensor.shape.index(channels) == 1) else 0
    return None


def _clip_layer(
    ckpt: Checkpoint, stack: Stack, layer: int, channels: int, own: dict[str, NDArray[np.float64]]
) -> dict[str, NDArray[np.float64]]:
    """Return the profiles of a layer without outliers, of a square matrix the one along the stream."""
    import numpy as np

    along = {}
    for role, profile in own.items():
        axis = _find_stream_axis(ckpt, stack, layer, role, channels) if profile.ndim > 1 else 0
        if axis is not None and (one := profile[axis] if profile.ndim > 1 else profile).any():
            along[role] = one
    return dict(zip(along, clip_profiles(np.stack([*along.values()])), strict=True)) if along else {}


def _measure_fits(profiles: Profiles, layer: int, roles: list[str]) -> list[float]:
    """Return how well some profiles of a layer follow its other norms and all profiles of the neighbouring layers."""
    import numpy as np

    references = [profile for role, profile in profiles[layer].items() if NORM.search(role) and role not in roles]
    for near in (layer - 1, layer + 1, layer - 2, layer + 2):
        references += profiles.get(near, {}).values()
    if not roles or not references:
        return [0.0] * len(roles)
    chosen = np.stack([profiles[layer][role] for role in roles])
    fits: list[float] = compute_adjusted_r2(chosen, np.stack(references[:MAX_REFERENCES])).tolist()
    return fits
