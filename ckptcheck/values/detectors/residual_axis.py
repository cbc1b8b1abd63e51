"""Finds square matrices that are stored transposed, by the axis along which they follow the residual stream.

Training makes some channels of the residual stream large and others small, and every matrix that reads or writes the stream shows
that: the norms of its columns (or rows) differ from channel to channel in a way that its neighbours predict. The
neighbours are the norms of the layer and its matrices that are not square, whose shape shows the axis of the stream.
The other axis of a square matrix counts heads, and the stream predicts nothing there. So the share of variance (R²)
that a least-squares fit to the neighbours explains is large along one axis and near zero along the other, and a
transposed matrix has them exchanged.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.checkpoint.layout import Stack
from ckptcheck.linter.evidence import remembered
from ckptcheck.values.channel_sample import choose_channels
from ckptcheck.values.detectors.channel_profiles import (
    centre_profile,
    compute_adjusted_r2,
    count_stream_channels,
    take_profile,
)
from ckptcheck.values.detectors.matrix_samples import FLOATS, read_rows
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
    r"(^|[._])(o_proj|out_proj|wo|out_lin|attn_out|attention\.output\.dense|attention\.dense)\.weight$"
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
"""Neighbours that a matrix is compared with, its own layer's first."""
FOLLOWS, INDEPENDENT = 0.2, 0.15
"""Adjusted R² at or above which an axis follows the stream, and at or below which it does not."""
MIN_VOTES = 3
"""With fewer layers, the usual axis of a matrix whose name does not show it is unknown."""


class TransposedMatrix(msgspec.Struct, frozen=True):
    """A square matrix whose axes are exchanged."""

    name: str
    axis: int
    """The axis that follows the residual stream, and should not: 0 for rows, 1 for columns."""
    r2: tuple[float, float]
    """Adjusted R² of the norms of its rows and of its columns."""


class AxisFit(msgspec.Struct, frozen=True):
    """How well each axis of a square matrix follows the residual stream."""

    name: str
    r2: tuple[float, float]
    """Adjusted R² of the norms of its rows and of its columns."""

    @property
    def axis(self) -> int | None:
        """The axis that follows the stream: 0 for rows (it writes), 1 for columns (it reads); None if unclear."""
        for axis in (0, 1):
            if self.r2[axis] >= FOLLOWS and self.r2[1 - axis] <= min(INDEPENDENT, self.r2[axis] / 3):
                return axis
        return None


@remembered
def find_transposed_matrices(ckpt: Checkpoint) -> list[TransposedMatrix]:
    """Return the square matrices of the layers that are stored transposed.

    It uses the samples of the value pass, and reads the norms again. Raises Skip if a file shrank since its values were
    read, OSError if reading fails.
    """
    transposed: list[TransposedMatrix] = []
    for stack in ckpt.layout.stacks.values():
        channels = count_stream_channels(ckpt, stack)
        if channels >= MIN_CHANNELS:
            transposed += _find_in_stack(ckpt, stack, channels)
    return transposed


def _find_in_stack(ckpt: Checkpoint, stack: Stack, channels: int) -> Iterator[TransposedMatrix]:
    fits_by_role: dict[str, list[tuple[int, AxisFit]]] = {}
    for layer, role, fit in _iter_fits(ckpt, stack, channels):
        fits_by_role.setdefault(role, []).append((layer, fit))
    for role, fits in fits_by_role.items():
        votes = Counter(fit.axis for _, fit in fits if fit.axis is not None)
        usual, number = votes.most_common(1)[0] if votes else (None, 0)
        for layer, fit in fits:
            axis = fit.axis
            expected = find_stream_axis(ckpt, stack, layer, role, channels)
            if expected is None and number >= MIN_VOTES and 4 * number >= 3 * votes.total():
                expected = usual
            if axis is not None and expected is not None and axis != expected:
                yield TransposedMatrix(fit.name, axis, fit.r2)


def find_stream_axis(ckpt: Checkpoint, stack: Stack, layer: int, role: str, channels: int) -> int | None:
    """Return the axis of the residual stream by a matrix's name and the layout of its layer; None if unclear."""
    reads = bool(READERS.search(role))
    if not reads and not WRITERS.search(role):
        return None
    for other in stack.layers[layer]:
        tensor = ckpt.tensors.get(stack.full_name(layer, other))
        if tensor is not None and EXPANDING.search(other) and tensor.shape.count(channels) == 1:
            return 1 if reads == (tensor.shape.index(channels) == 1) else 0
    return None


def _iter_fits(ckpt: Checkpoint, stack: Stack, channels: int) -> Iterator[tuple[int, str, AxisFit]]:
    """Yield the layer and role of each square matrix, with its fit."""
    square = {
        layer: roles
        for layer, names in stack.layers.items()
        if (roles := [role for role in sorted(names) if _is_square(ckpt, stack.full_name(layer, role), channels)])
    }
    if not square:
        return
    sample = choose_channels(channels)
    near = sorted({other for layer in square for other in (layer - 1, layer, layer + 1)} & stack.layers.keys())
    references = {layer: _reference_profiles(ckpt, stack, layer, channels, sample) for layer in near}
    for layer in square:
        yield from _fit_layer(ckpt, stack, layer, square[layer], references)


def _fit_layer(
    ckpt: Checkpoint,
    stack: Stack,
    layer: int,
    roles: list[str],
    references: dict[int, list[NDArray[np.float64]]],
) -> list[tuple[int, str, AxisFit]]:
    """Fit the square matrices of a layer to the references of the layer and of its neighbours."""
    import numpy as np

    if not references[layer]:
        return []
    profiles = [part for other in (layer, layer - 1, layer + 1) for part in references.get(other, [])]
    names = [stack.full_name(layer, role) for role in roles]
    samples = [ckpt.values.samples[name] for name in names]
    axes = [take_profile(squares) for sample in samples for squares in (sample.rows, sample.columns)]
    r2 = compute_adjusted_r2(np.stack(axes), np.stack(profiles[:MAX_REFERENCES])).reshape(-1, 2).tolist()
    return [
        (layer, role, AxisFit(name, (rows, columns)))
        for role, name, (rows, columns) in zip(roles, names, r2, strict=True)
    ]


def _is_square(ckpt: Checkpoint, name: str, channels: int) -> bool:
    if name not in ckpt.values.samples:
        return False
    stats = ckpt.values.tensors[name]
    return stats.shape == (channels, channels) and can_judge_channels(ckpt, stats)


def can_judge_channels(ckpt: Checkpoint, stats: TensorStats) -> bool:
    """Whether the norms of a matrix's channels, as stored, say something about its values."""
    return (
        stats.name in ckpt.tensor_to_file
        and (stats.dtype in FLOATS or (stats.dtype in SCALED and _has_plain_scale(ckpt, stats)))
        and not (stats.zero or stats.constant or stats.nan or stats.inf)
    )


def _has_plain_scale(ckpt: Checkpoint, stats: TensorStats) -> bool:
    """Whether a matrix has one scale, or one for each row."""
    scale = ckpt.tensors.get(f"{stats.name}_scale")
    return scale is not None and prod(scale.shape) in (1, stats.shape[0])


def _reference_profiles(
    ckpt: Checkpoint, stack: Stack, layer: int, channels: int, sample: NDArray[np.intp]
) -> list[NDArray[np.float64]]:
    """Return the profiles of a layer's norms and of its matrices that are not square."""
    import numpy as np

    profiles = []
    for role in sorted(stack.layers[layer]):
        stats = ckpt.values.tensors.get(stack.full_name(layer, role))
        if stats is None or not can_judge_channels(ckpt, stats):
            continue
        if stats.shape == (channels,) and NORM.search(role):
            weights = read_rows(ckpt, stats, np.arange(channels), np.arange(1))[sample, 0]
            profiles.append(centre_profile(np.log(np.abs(weights) + 1e-3 * stats.absmax)))
        elif (values := ckpt.values.samples.get(stats.name)) is not None and stats.shape.count(channels) == 1:
            profiles.append(take_profile(values.rows if stats.shape[0] == channels else values.columns))
    return [profile for profile in profiles if profile.any()]
