"""Finds zero points that do not belong to their integers.

The numbers of a trained weight lie around zero. So the integers of a group lie around its zero point: over many groups their mean
distance is a small part of a step, and a group with a high zero point has high integers. Zero points that are stored
one too low or too high shift all numbers by a step. Zero points of other groups (an exchanged tensor, eight columns in
the wrong order) keep the mean distance but lose the correlation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.quantization.storage import ModuleStorage
from ckptcheck.compare.bridge.tensor_layout import LayoutError
from ckptcheck.compare.matching.quantized.formats import open_quantized_weight
from ckptcheck.compare.matching.quantized.scaled import ScaledWeight
from ckptcheck.linter.rule import Skip
from ckptcheck.values.detectors.roles import name_pattern

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.compare.matching.tensor_files import TensorFiles

ZERO_POINTS = ("qzeros", "weight_zero_point")
MAX_MEMBERS = 96
"""Weights of one name (in different layers or experts) that are read, spread evenly."""
MIN_OUTPUTS = 32
"""Outputs of a weight below which it is not judged: one output may lie on one side of zero."""
SAMPLED_INTEGERS = 1 << 14
"""Integers of a block of whole rows; BLOCKS blocks are read of each weight."""
MIN_INPUTS = 128
"""Inputs of a block of columns."""
BLOCKS = 2
MIN_PAIRS = 64
"""Fewer groups do not show a correlation with the zero points."""
MIN_SPREAD = 0.5
"""Below this standard deviation of the zero points, in steps, a correlation means nothing."""


@dataclass(frozen=True)
class ZeroPointFit:
    """How the integers of a weight lie around their zero points."""

    name: str
    """The tensor with the zero points."""
    bits: int
    shift: float
    """Mean distance of the integers from their zero points, in steps."""
    correlation: float | None
    """Correlation of the zero points with the mean integers of their groups; None if the zero points hardly differ."""


def has_zero_points(ckpt: Checkpoint) -> bool:
    """Whether any quantized weight stores zero points as integers."""
    return ckpt.quantization is not None and any(
        _zero_point_role(way) is not None for way in ckpt.quantization.storages
    )


def _zero_point_role(way: ModuleStorage) -> str | None:
    roles = (role for role in ZERO_POINTS if role in way.parts and way.parts[role].dtype in ("I32", "I8"))
    return next(roles, None) if way.is_quantized else None


def measure_zero_points(ckpt: Checkpoint) -> list[ZeroPointFit]:
    """Measure quantized weights that store zero points as integers, at most MAX_MEMBERS of one name.

    Raises Skip if a file shrank since its values were read, OSError if reading fails.
    """
    groups: dict[str, list[tuple[str, ModuleStorage, str]]] = {}
    for way, modules in ckpt.quantization.storages.items() if ckpt.quantization is not None else ():
        if (role := _zero_point_role(way)) is not None:
            for module in modules:
                groups.setdefault(name_pattern(module), []).append((module, way, role))
    if not groups:
        return []
    from ckptcheck.compare.matching.tensor_files import TensorFiles

    fits = []
    with TensorFiles(ckpt.source) as files:
        for members in groups.values():
            for module, way, role in sorted(members)[:: -(-len(members) // MAX_MEMBERS)]:
                weight = open_quantized_weight(ckpt, way, module)
                if (
                    isinstance(weight, ScaledWeight)
                    and (fit := _fit(files, weight, way.name(module, role))) is not None
                ):
                    fits.append(fit)
    return fits


def _fit(files: TensorFiles, weight: ScaledWeight, name: str) -> ZeroPointFit | None:
    """Measure one weight; None if it is too small, or if its tensors do not fit (other rules report that)."""
    import numpy as np

    from ckptcheck.compare.matching.tensor_files import UnreadableFile

    if weight.shape[0] < MIN_OUTPUTS or "weight_zero_point" not in weight.parts:
        return None
    distances, means, zeros = [], [], []
    try:
        for rows, columns in _choose_blocks(weight):
            codes, zero, groups = weight.read_codes(files, rows, columns)
            distances.append(float((codes - zero).mean()))
            numbers, first, counts = np.unique(groups, return_index=True, return_counts=True)
            if zero.shape == codes.shape and len(numbers) * len(codes) and (np.diff(groups) >= 0).all():
                means.append((np.add.reduceat(codes, first, axis=1) / counts).ravel())
                zeros.append(zero[:, first].ravel())
    except UnreadableFile as error:
        raise Skip(str(error)) from error
    except (IndexError, ValueError, LayoutError):
        return None
    correlation = None
    if zeros and (points := np.concatenate(zeros)).size >= MIN_PAIRS and points.std() >= MIN_SPREAD:
        integers = np.concatenate(means)
        correlation = float(np.corrcoef(points, integers)[0, 1]) if integers.std() else 0.0
    return ZeroPointFit(name, weight.bits, sum(distances) / len(distances), correlation)


def _choose_blocks(weight: ScaledWeight) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return [begin, end) of rows and of columns for blocks of whole groups that lie together in the file."""
    outputs, inputs = weight.shape
    group = weight.block[1]
    (chunk,) = weight.weight.chunks[:1]
    if chunk.strides[0] > chunk.strides[1]:  # a row after the other
        rows = min(outputs, max(1, SAMPLED_INTEGERS // inputs))
        starts = sorted({(outputs - rows) * block // max(BLOCKS - 1, 1) for block in range(BLOCKS)})
        return [((start, start + rows), (0, inputs)) for start in starts]
    # An eighth of the outputs or more, for smaller reads would each take a line.
    rows = min(outputs, max(MIN_PAIRS, -(-outputs // 8)) // 8 * 8)
    width = min(inputs, max(group, MIN_INPUTS // group * group)) if group % 32 == 0 else inputs
    starts = sorted({(inputs - width) * (block + 1) // (BLOCKS + 1) // width * width for block in range(BLOCKS)})
    return [((0, rows), (start, min(start + width, inputs))) for start in starts]
