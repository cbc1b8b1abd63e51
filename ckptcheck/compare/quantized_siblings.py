"""Compares samples of quantized weights, dequantized, with what trained weights look like and with their siblings.

Magnitudes: the value pass knows the largest number and the largest scale of every tensor, and so how large the numbers of a weight
can be. That costs nothing and is the first look. Only where it differs from the same weight in other layers, rows are dequantized,
and their root mean square (RMS) is compared with that of siblings.

Zero points: the numbers of a trained weight lie around zero. So the integers of a group lie around its zero point: over many groups
their mean distance is a small part of a step, and a group with a high zero point has high integers. Zero points that are stored one
too low or too high shift all numbers by a step. Zero points of other groups (an exchanged tensor, eight columns in the wrong order)
keep the mean distance but lose the correlation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite, log, prod, sqrt
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

from ckptcheck.checkpoint.quantization.scales import iter_scales
from ckptcheck.checkpoint.quantization.storage import ModuleStorage
from ckptcheck.compare.bridge.tensor_layout import LayoutError
from ckptcheck.compare.matching.quantized.formats import open_quantized_weight
from ckptcheck.compare.matching.quantized.scaled import ScaledWeight
from ckptcheck.linter.rule import Skip
from ckptcheck.values.detectors.roles import name_pattern

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.views import QuantizedCheckpoint
    from ckptcheck.compare.matching.tensor_files import TensorFiles

FACTORS = (
    "weight_scale", "weight_scale_inv", "weight_scales", "weight_scale_2", "weight_global_scale", "scales", "SCB", "absmax",
)  # fmt: skip
"""Roles of scales that multiply the numbers of a weight."""
DIVISORS = ("weight_global_scale",)
"""The roles among them whose scale divides."""
SCALE_FACTOR = 10_000
"""Largest factor of a lone scale over its siblings' scales: no two layers are known to differ so much."""
LARGEST_PACKED = 8.0
"""About the largest number of four bits."""
MIN_SIBLINGS = 4
"""Fewer weights of one name, in different layers or experts, do not show what is usual."""
FIRST_LOOK = 4.0
"""Factor between the largest numbers of siblings at which rows are read."""
MAX_SUSPECTS = 256
"""Weights of one name whose rows are read."""
COMPARED_SIBLINGS = 9
"""Siblings whose rows are read: the ones nearest to the usual largest number."""
RUNS, ROWS = 4, 4
"""Runs of neighbouring rows that are read, spread evenly, and the rows of each."""
USUAL_LARGEST = (1e-4, 50.0)
"""In every known trained model, at least half of the weights have their largest number between these two."""
USUAL_RMS = (1e-5, 10.0)
"""The same for their root mean square."""


class WeightSize(msgspec.Struct, frozen=True):
    """How large the numbers of a weight can be, by the statistics of the value pass."""

    module: str
    way: ModuleStorage
    factors: dict[str, float]
    """Role → the largest number of that tensor; a divisor's reciprocal."""

    @property
    def largest(self) -> float:
        """The largest number that the weight can have, as far as these tensors say."""
        return prod(self.factors.values())


class UnlikeMagnitude(msgspec.Struct, frozen=True):
    """A weight that is much larger or smaller than its siblings."""

    key: str
    """The scale that differs most from the siblings' scales."""
    rms: float
    typical: float
    """The median RMS of siblings."""
    siblings: int
    """How many weights have its name, itself included."""

    @property
    def ratio(self) -> float:
        """How many times as large as its siblings it is."""
        return self.rms / self.typical


def find_unlike_quantized_weights(ckpt: Checkpoint, larger: float, smaller: float) -> list[UnlikeMagnitude]:
    """Return the quantized weights that are at least `larger` times as large as their siblings, or `smaller` times as small.

    A small expert is no finding: an expert that the router never chose decays. Raises Skip if a file shrank since its
    values were read, OSError if reading fails.
    """
    groups: dict[tuple[str, tuple[str, ...]], list[WeightSize]] = {}
    for size in _iter_quantized_sizes(ckpt):
        groups.setdefault((name_pattern(size.module), tuple(size.factors)), []).append(size)
    suspected = [(members, suspects) for members in groups.values() if (suspects := _suspects(members))]
    if not suspected:
        return []
    found = []
    from ckptcheck.compare.matching.tensor_files import TensorFiles

    with TensorFiles(ckpt.source) as files:
        for members, suspects in suspected:
            usual = median(size.largest for size in members)
            nearest = sorted(members, key=lambda size: abs(log(size.largest / usual)))[:COMPARED_SIBLINGS]
            measured = [rms for size in nearest if (rms := _measure_rms(ckpt, files, size)) is not None]
            if len(measured) < MIN_SIBLINGS:
                continue
            typical = median(measured)
            for size in suspects:
                rms = _measure_rms(ckpt, files, size)
                if rms is None or not rms or not typical:
                    continue
                is_expert = ".experts." in f".{size.module}."
                if rms >= larger * typical or (rms * smaller <= typical and not is_expert):
                    found.append(UnlikeMagnitude(_name_worst_factor(size, members), rms, typical, len(members)))
    return found


def measure_absurd_scales(ckpt: Checkpoint) -> tuple[float, int] | None:
    """Return the median RMS of some quantized weights and how many they are, if no trained model is that large or small.

    None if the median is usual, or if fewer than MIN_SIBLINGS weights could be read. Raises as
    `find_unlike_quantized_weights`.
    """
    from ckptcheck.compare.matching.tensor_files import TensorFiles

    sizes = list(_iter_quantized_sizes(ckpt))
    if len(sizes) < MIN_SIBLINGS or USUAL_LARGEST[0] <= median(size.largest for size in sizes) <= USUAL_LARGEST[1]:
        return None
    with TensorFiles(ckpt.source) as files:
        sampled = sizes[:: max(1, len(sizes) // (2 * COMPARED_SIBLINGS))]
        measured = [rms for size in sampled if (rms := _measure_rms(ckpt, files, size)) is not None]
    if len(measured) < MIN_SIBLINGS or USUAL_RMS[0] <= (typical := median(measured)) <= USUAL_RMS[1]:
        return None
    return typical, len(sizes)


def _iter_quantized_sizes(ckpt: Checkpoint) -> Iterator[WeightSize]:
    values = ckpt.values.tensors
    for way, modules in ckpt.quantization.storages.items() if ckpt.quantization is not None else ():
        if not way.is_quantized or way.is_misnamed or way.weight is None:
            continue
        roles = [role for role in FACTORS if role in way.parts and (role != "absmax" or way.parts[role].dtype == "F32")]
        for module in modules:
            factors: dict[str, float] = {}
            for role in roles:
                stats = values.get(way.name(module, role))
                number = stats.absmax if stats is not None else 0.0
                if stats is not None and way.parts[role].dtype == "U8":  # a power of two (E8M0)
                    number = 2.0 ** (number - 127)
                if not 0 < number < float("inf"):
                    factors.clear()
                    break
                factors[role] = 1 / number if role in DIVISORS else number
            weight = values.get(way.name(module, way.weight.role))
            if not factors or weight is None or weight.zero:
                continue
            is_float = weight.dtype.startswith("F8_")
            factors[way.weight.role] = weight.absmax if is_float else 127.0 if weight.dtype == "I8" else LARGEST_PACKED
            if not factors[way.weight.role]:
                continue
            yield WeightSize(module, way, factors)


def _suspects(members: Sequence[WeightSize]) -> list[WeightSize]:
    """Return the members whose largest number differs from the usual one, most of all first."""
    if len(members) < MIN_SIBLINGS:
        return []
    usual = median(size.largest for size in members)
    unlike = [(abs(log(size.largest / usual)), number) for number, size in enumerate(members)]
    most = sorted((item for item in unlike if item[0] > log(FIRST_LOOK)), reverse=True)[:MAX_SUSPECTS]
    return [members[number] for number in sorted(number for _, number in most)]


def _name_worst_factor(size: WeightSize, members: Sequence[WeightSize]) -> str:
    """Return the name of the tensor of a weight that differs most from its siblings'."""
    role = max(
        size.factors,
        key=lambda role: abs(log(size.factors[role] / median(member.factors[role] for member in members))),
    )
    return size.way.name(size.module, role)


def _measure_rms(ckpt: Checkpoint, files: TensorFiles, size: WeightSize) -> float | None:
    """Return the root mean square of some rows of a weight; None if they cannot be read or are not finite."""
    import numpy as np

    with np.errstate(all="ignore"):
        squares = [np.square(part, dtype=np.float64).mean() for part in _read_rows(ckpt, files, size)]
    rms = sqrt(float(np.mean(squares))) if squares else float("nan")
    return rms if isfinite(rms) else None


def _read_rows(ckpt: Checkpoint, files: TensorFiles, size: WeightSize) -> Iterator[Any]:
    from ckptcheck.compare.matching.tensor_files import UnreadableFile

    weight = open_quantized_weight(ckpt, size.way, size.module)
    if weight is None or weight.unsupported_reason is not None or len(weight.shape) != 2:
        return
    last = max(weight.shape[0] - ROWS, 0)
    for start in sorted({run * last // (RUNS - 1) for run in range(RUNS)}):
        try:
            yield weight.dequantize_rows(files, start, min(start + ROWS, weight.shape[0])).values
        except UnreadableFile as error:
            raise Skip(str(error)) from error
        # The stored tensors do not fit each other, which other rules report.
        except (IndexError, ValueError, LayoutError):
            return


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


class ZeroPointFit(msgspec.Struct, frozen=True):
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


def find_absurd_scales(ckpt: QuantizedCheckpoint) -> dict[str, tuple[float, float]]:
    """Return scale → (its largest number, its siblings' typical one), for scales that are far too large."""
    siblings: dict[str, list[tuple[str, float]]] = {}
    for name, _, part in iter_scales(ckpt):
        stats = ckpt.values.tensors.get(name)
        # 255 is NaN, which QNT010 reports.
        if stats is None or not stats.absmax or (part.dtype == "U8" and stats.absmax == 255):
            continue
        largest = 2.0 ** (stats.absmax - 127) if part.dtype == "U8" else stats.absmax
        siblings.setdefault(name_pattern(name), []).append((name, largest))
    found = {}
    for members in siblings.values():
        typical = median(largest for _, largest in members)
        for name, largest in members if len(members) >= 3 else ():
            if largest > SCALE_FACTOR * typical:
                found[name] = (largest, typical)
    return found
