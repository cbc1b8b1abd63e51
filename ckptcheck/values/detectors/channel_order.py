"""Finds matrices whose channels are not in the order of those around them: shuffled, rolled, or of another layer.

A matrix of a layer shares each of its axes with others. Along the residual stream it follows the norms of its layer and
the matrices of the neighbouring layers. Along the inner axis of a feed-forward block, the rows of up follow the columns
of down: unit j computes act(…) × (up_j · x), and column j of down carries it on, so training changes both together. A
matrix whose rows or columns are in another order, or that belongs to another layer, has the right shape and the right
statistics, and follows nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.checkpoint.layout import Stack
from ckptcheck.values.channel_sample import choose_channels
from ckptcheck.values.detectors.channel_profiles import (
    clip_profile,
    clip_profiles,
    compute_adjusted_r2,
    correlate_profiles,
    count_stream_channels,
    read_norm_profile,
    take_profile,
)
from ckptcheck.values.detectors.dtype_mislabel import find_mislabelled
from ckptcheck.values.detectors.duplicate_tensors import find_equal_layers, find_equal_matrices
from ckptcheck.values.detectors.init_detection import find_init_groups
from ckptcheck.values.detectors.matrix_samples import FLOATS, compute_mean_squares, read_rows
from ckptcheck.values.detectors.residual_axis import (
    MIN_CHANNELS,
    can_judge_channels,
    find_stream_axis,
    find_transposed_matrices,
)
from ckptcheck.values.detectors.roles import NORM
from ckptcheck.values.detectors.single_magnitudes import find_single_magnitudes
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

UP_AND_DOWN = (
    ("up_proj", "down_proj"),
    ("w3", "w2"),
    ("fc1", "fc2"),
    ("fc_in", "fc_out"),
    ("c_fc", "c_proj"),
    ("lin1", "lin2"),
    ("linear1", "linear2"),
    ("wi_1", "wo"),
    ("wi", "wo"),
    ("dense_h_to_4h", "dense_4h_to_h"),
    ("intermediate.dense", "output.dense"),
    ("intermediate_dense", "output_dense"),
)
"""Names of the matrix that computes the units of a feed-forward block (up, if there is a gate), and of the one that
reads them."""
GATES = {"up_proj": "gate_proj", "w3": "w1", "wi_1": "wi_0"}
MIN_LAYERS = 6
"""Fewer layers do not show what is usual."""
MAX_SHARE = 0.25
"""Share of the layers that may differ from the others: more are another kind of layer."""
MAX_REFERENCES = 24
"""Profiles that a matrix is compared with: the norms of its layer first, then the most similar profiles of the
neighbouring layers."""
USUALLY_FOLLOWS, HARDLY_FOLLOWS = 0.5, 0.1
"""R² along the residual stream: the lower bound for the median layer, and the upper bound for a layer that stands
out."""
USUALLY_AGREES, HARDLY_AGREES = 0.6, 0.25
"""Correlation inside a block: the lower bound for the median layer, and the upper bound for a layer that stands out."""
PARTS = 8
"""Parts of a block whose order is tried: ranks of a tensor-parallel trainer, or pairs of them."""
BETTER = 0.1
"""An order of more parts has to agree by this much more than one of fewer."""
MIN_PART = 32
"""Channels that are read of each part."""


class ScatteredMatrix(msgspec.Struct, frozen=True):
    """A matrix that does not follow the residual stream, although it does in other layers."""

    name: str
    r2: float
    usual: float
    """R² in the median of the layers."""


class MismatchedBlock(msgspec.Struct, frozen=True):
    """Two matrices of a feed-forward block whose units do not belong together."""

    up: str
    down: str
    correlation: float
    usual: float
    """The correlation in the median of the layers."""
    belongs: tuple[int, int] | None = None
    """The layer whose down agrees with this up, and the layer whose up agrees with this down; both are other layers."""
    order: tuple[int, ...] = ()
    """The order of up's parts, counted from 0, in which it agrees with down; empty without one."""


class FeedForwardBlock(msgspec.Struct, frozen=True):
    """Up, down and gate of a layer."""

    layer: int
    up: TensorStats
    down: TensorStats
    axis: int
    """The axis of up that counts units: 0 for torch.nn.Linear, 1 for Conv1D."""
    units: tuple[NDArray[np.float64], NDArray[np.float64]]
    """The profiles of up and of down along their units."""
    gate: NDArray[np.float64] | None
    """The same of the gate; None without a gate."""
    gate_stats: TensorStats | None


def find_scattered_matrices(ckpt: Checkpoint) -> list[ScatteredMatrix]:
    """Return the matrices and norms that do not follow the residual stream, while their siblings in other layers do.

    It uses the samples of the value pass, and reads the norms again. It does not judge the first and the last layer of
    a stack: the stream differs there. Raises Skip if a file shrank since its values were read, OSError if reading
    fails.
    """
    scattered: list[ScatteredMatrix] = []
    for stack in ckpt.layout.stacks.values():
        channels = count_stream_channels(ckpt, stack)
        if channels < MIN_CHANNELS or len(stack.layers) < MIN_LAYERS:
            continue
        profiles = {layer: _read_profiles(ckpt, stack, layer, channels) for layer in sorted(stack.layers)}
        r2_by_role: dict[str, dict[int, float]] = {}
        for layer, own in profiles.items():
            matrices = [role for role in own if not NORM.search(role)]
            for roles in (matrices, *([role] for role in own.keys() - matrices)):
                for role, r2 in zip(roles, _measure_fits(profiles, layer, roles), strict=True):
                    r2_by_role.setdefault(role, {})[layer] = r2
        for role, by_layer in r2_by_role.items():
            usual = median(by_layer.values())
            scattered += [
                ScatteredMatrix(stack.full_name(layer, role), by_layer[layer], usual)
                for layer in _choose_low(by_layer, USUALLY_FOLLOWS, HARDLY_FOLLOWS)
            ]
    explained = find_explained(ckpt) if scattered else set()
    return [matrix for matrix in scattered if matrix.name not in explained]


def _choose_low(values: dict[int, float], usual: float, low: float) -> list[int]:
    """Return the layers with a low value, if the value is usually high; never the first or the last layer."""
    layers = sorted(values)
    if len(layers) < MIN_LAYERS or median(values.values()) < usual:
        return []
    chosen = [layer for layer in layers if values[layer] <= low]
    return (
        [layer for layer in chosen if layer not in (layers[0], layers[-1])]
        if len(chosen) <= MAX_SHARE * len(layers)
        else []
    )


def _read_profiles(ckpt: Checkpoint, stack: Stack, layer: int, channels: int) -> dict[str, NDArray[np.float64]]:
    """Return the profile of each norm and matrix of a layer along the residual stream."""
    import numpy as np

    profiles: dict[str, NDArray[np.float64]] = {}
    for role in sorted(stack.layers[layer]):
        stats = ckpt.values.tensors.get(stack.full_name(layer, role))
        if stats is None or not can_judge_channels(ckpt, stats):
            continue
        if stats.shape == (channels,) and NORM.search(role):
            profile = read_norm_profile(ckpt, stats.name)
        elif (sample := ckpt.values.samples.get(stats.name)) is not None and stats.shape.count(channels) == 1:
            profile = take_profile(sample.rows if stats.shape[0] == channels else sample.columns)
        elif sample is not None and (axis := find_stream_axis(ckpt, stack, layer, role, channels)) is not None:
            profile = take_profile(sample.columns if axis else sample.rows)
        else:
            continue
        if profile.any():
            profiles[role] = profile
    return dict(zip(profiles, clip_profiles(np.stack([*profiles.values()])), strict=True)) if profiles else {}


def _measure_fits(profiles: dict[int, dict[str, NDArray[np.float64]]], layer: int, roles: list[str]) -> list[float]:
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


def find_explained(ckpt: Checkpoint) -> set[str]:
    """Return the tensors that follow nothing for a reason that another rule reports."""
    drawn = {sample.name for group in find_init_groups(ckpt) for sample in group.at_init}
    copied = {name for copy in find_equal_matrices(ckpt) for name in copy.unit.names.values()}
    of_equal_layers = {
        stack.full_name(layer, role)
        for stack in ckpt.layout.stacks.values()
        if find_equal_layers(ckpt)
        for layer, roles in stack.layers.items()
        for role in roles
    }
    return drawn.union(
        copied,
        of_equal_layers,  # The neighbours of a repeated block of layers are the wrong ones.
        (matrix.name for matrix in find_transposed_matrices(ckpt)),
        (stats.name for stats in find_mislabelled(ckpt)),
        find_single_magnitudes(ckpt),
    )


def find_mismatched_blocks(ckpt: Checkpoint) -> list[MismatchedBlock]:
    """Return the feed-forward blocks whose up and down do not agree, while other layers' do.

    It uses the samples of the value pass, and reads 256 rows and columns again of a block that stands out. Raises Skip
    if a file shrank since its values were read, OSError if reading fails.
    """
    found: list[MismatchedBlock] = []
    for stack in ckpt.layout.stacks.values():
        kinds: dict[str, list[FeedForwardBlock]] = {}
        for layer in sorted(stack.layers):
            for kind, block in iter_feed_forward_blocks(ckpt, stack, layer):
                kinds.setdefault(kind, []).append(block)
        for blocks in kinds.values():
            agreements = {block.layer: correlate_profiles(*block.units) for block in blocks}
            usual = median(agreements.values())
            by_layer = {block.layer: block for block in blocks}
            for layer in _choose_low(agreements, USUALLY_AGREES, HARDLY_AGREES):
                block = by_layer[layer]
                if block.gate is not None and 2 * correlate_profiles(block.gate, block.units[1]) > usual:
                    continue  # gate and up are exchanged: VAL019 reports it
                found.append(
                    MismatchedBlock(
                        block.up.name,
                        block.down.name,
                        agreements[layer],
                        usual,
                        _find_layers(block, by_layer, usual),
                        _find_order(ckpt, block, usual),
                    )
                )
    explained = find_explained(ckpt) if found else set()
    return [block for block in found if explained.isdisjoint((block.up, block.down))]


def iter_feed_forward_blocks(ckpt: Checkpoint, stack: Stack, layer: int) -> Iterator[tuple[str, FeedForwardBlock]]:
    """Yield the feed-forward blocks of a layer, each with the role of its up."""
    names = stack.layers[layer]
    for role in sorted(names):
        for up, down in UP_AND_DOWN:
            prefix = role.removesuffix(f"{up}.weight")
            if prefix == role or (prefix and not prefix.endswith(".")) or f"{prefix}{down}.weight" not in names:
                continue
            if up == "wi" and f"{prefix}wi_1.weight" in names:
                continue
            pair = [ckpt.values.tensors.get(stack.full_name(layer, f"{prefix}{part}.weight")) for part in (up, down)]
            first, last = pair
            if first is None or last is None or not all(_can_judge(ckpt, stats) for stats in (first, last)):
                continue
            if first.shape != last.shape[::-1] or first.shape[0] == first.shape[1] or min(first.shape) < MIN_CHANNELS:
                continue
            axis = 0 if first.shape[0] > first.shape[1] else 1
            gate = ckpt.values.tensors.get(stack.full_name(layer, f"{prefix}{GATES.get(up, '')}.weight"))
            is_gated = gate is not None and gate.shape == first.shape and _can_judge(ckpt, gate)
            yield (
                role,
                FeedForwardBlock(
                    layer,
                    first,
                    last,
                    axis,
                    (_take_units(ckpt, first, axis), _take_units(ckpt, last, 1 - axis)),
                    _take_units(ckpt, gate, axis) if gate is not None and is_gated else None,
                    gate if is_gated else None,
                ),
            )
            break


def _can_judge(ckpt: Checkpoint, stats: TensorStats) -> bool:
    return stats.name in ckpt.values.samples and stats.dtype in FLOATS and can_judge_channels(ckpt, stats)


def _take_units(ckpt: Checkpoint, stats: TensorStats, axis: int) -> NDArray[np.float64]:
    sample = ckpt.values.samples[stats.name]
    return clip_profile(take_profile(sample.columns if axis else sample.rows))


def _find_layers(block: FeedForwardBlock, blocks: dict[int, FeedForwardBlock], usual: float) -> tuple[int, int] | None:
    """Return the layer whose down agrees with this up, and the one whose up agrees with this down; both are others."""
    downs = {layer: correlate_profiles(block.units[0], other.units[1]) for layer, other in blocks.items()}
    ups = {layer: correlate_profiles(other.units[0], block.units[1]) for layer, other in blocks.items()}
    down, up = max(downs, key=downs.__getitem__), max(ups, key=ups.__getitem__)
    return (down, up) if min(downs[down], ups[up]) > max(usual / 2, HARDLY_AGREES) else None


def _find_order(ckpt: Checkpoint, block: FeedForwardBlock, usual: float) -> tuple[int, ...]:
    """Return the order in which up's parts agree with down's, in the fewest parts; empty if no other order does."""
    import numpy as np

    units = block.up.shape[block.axis]
    if units % PARTS or units // PARTS < MIN_PART:
        return ()
    inside = np.arange(MIN_PART) * (units // PARTS // MIN_PART)
    chosen = (np.arange(PARTS)[:, None] * (units // PARTS) + inside).ravel()
    profiles = [
        _measure_units(ckpt, stats, axis, chosen).reshape(PARTS, MIN_PART)
        for stats, axis in ((block.up, block.axis), (block.down, 1 - block.axis))
    ]
    best = usual / 2
    best_order: tuple[int, ...] = ()
    for parts in (2, 4, PARTS):
        up, down = (profile.reshape(parts, -1) for profile in profiles)
        agreements = np.array([[correlate_profiles(first, last) for first in up] for last in down])
        order = agreements.argmax(axis=1)
        if len(set(order.tolist())) == parts and not (order == np.arange(parts)).all():
            fit = correlate_profiles(up[order].ravel(), down.ravel())
            if fit > best:
                best, best_order = fit + BETTER, tuple(order.tolist())
    return best_order


def _measure_units(ckpt: Checkpoint, stats: TensorStats, axis: int, chosen: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the profile of some units of a matrix, over 256 channels of its other axis."""
    others = choose_channels(stats.shape[1 - axis])
    values = read_rows(ckpt, stats, others, chosen) if axis else read_rows(ckpt, stats, chosen, others)
    return clip_profile(take_profile(compute_mean_squares(values, 1 - axis)))
