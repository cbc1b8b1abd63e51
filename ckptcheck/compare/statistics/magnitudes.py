"""Finds quantized weights whose numbers are many times as large, or as small, as those of the same weight in other layers.

The value pass knows the largest number and the largest scale of every tensor, and so how large the numbers of a weight can be. That
costs nothing and is the first look. Only where it differs from the siblings, rows are dequantized, and their root
mean square (RMS) is compared with that of siblings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, log, prod, sqrt
from statistics import median
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.quantization.storage import ModuleStorage
from ckptcheck.compare.matching.quantized.formats import open_quantized_weight
from ckptcheck.linter.rule import Skip
from ckptcheck.values.detectors.roles import name_pattern

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.compare.matching.tensor_files import TensorFiles

FACTORS = (
    "weight_scale", "weight_scale_inv", "weight_scales", "weight_scale_2", "weight_global_scale", "scales", "SCB", "absmax",
)  # fmt: skip
"""Roles of scales that multiply the numbers of a weight."""
DIVISORS = ("weight_global_scale",)
"""The roles among them whose scale divides."""
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


@dataclass(frozen=True)
class WeightSize:
    """How large the numbers of a weight can be, by the statistics of the value pass."""

    module: str
    way: ModuleStorage
    factors: dict[str, float]
    """Role → the largest number of that tensor; a divisor's reciprocal."""

    @property
    def largest(self) -> float:
        """The largest number that the weight can have, as far as these tensors say."""
        return prod(self.factors.values())


@dataclass(frozen=True)
class UnlikeMagnitude:
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
    from ckptcheck.compare.bridge.tensor_layout import LayoutError
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
