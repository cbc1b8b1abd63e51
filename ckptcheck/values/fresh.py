"""Tells matrices whose values are still an initialiser's from trained ones.

Initialisers draw every element independently from one distribution. So the mean squares of rows differ only by chance:
their variance is (kurtosis - 1) / columns of their own square, and columns likewise. Training makes some rows and
columns matter more than others, and leaves values far outside the bell: on real models each of these alone shows most
matrices to be trained. A matrix counts as fresh only if none of them does.

The variance of a mean of squares is textbook statistics; the initialisers are those of ``torch.nn.init``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite, prod, sqrt
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.tensor import PLAIN
from ckptcheck.rule import Skip
from ckptcheck.values.dtypes import FORMATS, decode
from ckptcheck.values.roles import NORM, is_matrix, is_scale, starts_at_zero, template
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

STAYS_RANDOM = re.compile(
    r"lora_(embedding_)?A|vera_|randlora|random|gaussian_matrix|fourier|\brff\b|pooler|quantizer", re.IGNORECASE
)
"""What is random by design and stays so: projections, Fourier features; the pooler of an encoder, which nothing uses."""
LEAST = 32
"""Rows and columns below which chance may equal training."""
GLANCE = 1 << 12
"""Bytes of every matrix that are glanced at."""
SAMPLE, RUNS = 1 << 19, 16
"""Bytes of a suspect that are read, in so many runs of rows spread evenly; at least 4 rows a run."""
FAMILY = 256
"""Members of a family that are glanced at: where there are more, those with the smallest largest magnitude."""
PEAK = 7.0
"""Standard deviations within which 10^9 normal values stay; a trained matrix seldom does."""
SURE = 4.0
"""Standard deviations that chance is given."""

SAMPLED = 16
"""Matrices by which a checkpoint with constant norms is judged."""
NORMS = 8
"""So many norms have to be trained for each that is not: then precision or a short training is no explanation."""


@dataclass(frozen=True)
class Draw:
    """A matrix that looks freshly drawn. kind: of distribution. spread: standard deviation of the norms of its rows, relative."""

    name: str
    kind: str
    spread: float


@dataclass(frozen=True)
class Family:
    """Matrices that should be alike: one per layer or expert, or a single one. trained: how many of those looked at are."""

    fresh: tuple[Draw, ...]
    trained: int

    @property
    def is_fresh(self) -> bool:
        """Whether most of it is fresh."""
        return len(self.fresh) > self.trained


def fresh_families(ckpt: Checkpoint) -> list[Family]:
    """Return the families with fresh members, where most families of the model are trained; else nothing.

    Reads 4 KiB of every matrix, and 512 KiB (or 64 rows) of those that this leaves suspect. Raises Skip where a file shrank
    since its values were read, OSError where reading fails.
    """
    import numpy as np

    with np.errstate(all="ignore"):  # squares of absurd values overflow, and are no bell then
        return _fresh_families(ckpt)


def _fresh_families(ckpt: Checkpoint) -> list[Family]:
    families: dict[str, list[TensorStats]] = {}
    for name, stats in ckpt.values.tensors.items():
        if name in ckpt.holders and _is_judged(ckpt, stats):
            families.setdefault(template(name), []).append(stats)
    suspects: list[tuple[list[TensorStats], int]] = []
    for members in families.values():
        some = sorted(members, key=lambda stats: stats.absmax)[:FAMILY]
        suspected = sorted((stats for stats in some if _is_suspect(ckpt, stats)), key=lambda stats: stats.name)
        suspects.append((suspected, len(some)))
    if 2 * sum(2 * len(some) > number for some, number in suspects) >= len(suspects):
        return []  # a model that was never trained, or hardly: nothing stands out
    found = []
    for some, number in suspects:
        drawn = tuple(draw for stats in some if (draw := _draw(ckpt, stats)) is not None)
        if drawn:
            found.append(Family(drawn, number - len(drawn)))
    return found


def untouched_heads(ckpt: Checkpoint) -> list[str]:
    """Return the reward, value and classification heads that are as ``torch.nn.Linear`` starts them.

    It draws uniformly within ± 1 / sqrt(columns). Training by half a percent carries some values over that bound, so
    this can be told even of one row. A head that starts normal cannot be told from one that training hardly moved.
    """
    found = []
    for name in ckpt.anatomy.scores:
        stats = ckpt.values.tensors.get(name)
        if stats is None or not is_matrix(stats) or len(stats.shape) != 2 or stats.constant or prod(stats.shape) < 512:
            continue
        number, bound = prod(stats.shape), 1 / sqrt(stats.shape[1])
        if not bound * (1 - 12 / number) <= stats.absmax * (1 + 2**-8) <= bound * (1 + 2**-7):
            continue
        values = _rows(ckpt, stats)  # nothing overflows: the largest magnitude is the bound
        if abs(_kurtosis(values) - 1.8) < SURE * sqrt(3 / values.size):
            found.append(name)
    return found


def looks_untrained(ckpt: Checkpoint) -> bool:
    """Whether the whole checkpoint looks freshly initialised: all norms of its layers are constant, and its matrices drawn.

    Norms start at one (or zero); any training moves them. Without norms, nearly all vectors have to be constant. Constant
    norms may also be lost, or multiplied into the matrices behind them: so SAMPLED matrices are looked at, of which half
    have to be drawn, where there are any that can be judged. On the Hub none is read. Errors as `fresh_families`.
    """
    if not has_constant_norms(ckpt):
        return False
    import numpy as np

    judged = [stats for name, stats in ckpt.values.tensors.items() if name in ckpt.holders and _is_judged(ckpt, stats)]
    some = judged[:: max(1, -(-len(judged) // SAMPLED))] if ckpt.source.local is not None else []
    with np.errstate(all="ignore"):
        drawn = sum(_is_suspect(ckpt, stats) and _draw(ckpt, stats) is not None for stats in some)
    return 2 * drawn >= len(some)


def has_constant_norms(ckpt: Checkpoint) -> bool:
    """Whether all norms of the layers are one number each; where there is no norm, nearly all vectors."""
    stack = ckpt.anatomy.stack
    if stack is None:
        return False
    inside = stack.prefix + "."
    vectors = [
        stats
        for name, stats in ckpt.values.tensors.items()
        if len(stats.shape) == 1 and stats.shape[0] > 1 and name.startswith(inside) and stats.dtype in PLAIN
    ]
    norms = [stats for stats in vectors if NORM.search(stats.name)]
    if norms:
        return all(stats.constant for stats in norms)
    return bool(vectors) and sum(stats.constant for stats in vectors) >= 0.9 * len(vectors)


def unmoved_norms(ckpt: Checkpoint) -> dict[str, tuple[TensorStats, ...]]:
    """Return template → the norms that are one number, where at least eight times as many siblings are not."""
    families: dict[str, list[TensorStats]] = {}
    for name, stats in ckpt.values.tensors.items():
        if name in ckpt.holders and len(stats.shape) == 1 and stats.shape[0] > 1 and NORM.search(name):
            families.setdefault(template(name), []).append(stats)
    found = {}
    for family, members in families.items():
        still = tuple(stats for stats in members if stats.constant and not _is_idle(ckpt, stats.name))
        if still and NORMS * len(still) <= sum(not stats.constant for stats in members):
            found[family] = still
    return found


def _is_judged(ckpt: Checkpoint, stats: TensorStats) -> bool:
    """Whether a tensor is a matrix large enough to tell, of plain numbers, that training should have moved."""
    rows, columns = _sides(stats)
    return (
        is_matrix(stats)
        and FORMATS[stats.dtype].bits >= 16
        and min(rows, columns) >= LEAST
        and not (stats.constant or stats.zero or stats.nan or stats.inf)
        and not (is_scale(stats.name) or starts_at_zero(stats.name) or STAYS_RANDOM.search(stats.name))
        and not _is_idle(ckpt, stats.name)
    )


def _is_idle(ckpt: Checkpoint, name: str) -> bool:
    """Whether nothing uses a tensor: the keys and values of layers that take those of others (Gemma 3n)."""
    shared = ckpt.config.integer("num_kv_shared_layers") if ckpt.config is not None else None
    stack, depth = ckpt.anatomy.stack, ckpt.anatomy.depth
    if not shared or depth is None or stack is None or not name.startswith(stack.prefix + "."):
        return False
    layer, _, rest = name.removeprefix(stack.prefix + ".").partition(".")
    return layer.isdigit() and int(layer) >= depth - shared and bool(re.search(r"\b[kv]_(proj|norm)\b", rest))


def _sides(stats: TensorStats) -> tuple[int, int]:
    """Rows and columns; a stack of matrices (packed experts) is read as one, a kernel as a row per channel."""
    if len(stats.shape) < 2 or 0 in stats.shape:
        return 0, 0
    if len(stats.shape) == 3 and stats.shape[2] >= LEAST:
        return stats.shape[0] * stats.shape[1], stats.shape[2]
    return stats.shape[0], prod(stats.shape[1:])


def _is_suspect(ckpt: Checkpoint, stats: TensorStats) -> bool:
    """Glance at a few values in the middle: does what is seen of the bell agree with the largest magnitude of all?"""
    width = FORMATS[stats.dtype].bits // 8
    nbytes = prod(stats.shape) * width
    values = _read(ckpt, stats, max(0, nbytes - GLANCE) // 2 // width * width, min(GLANCE, nbytes)).ravel()
    deviation = float(values.std(dtype="f8"))
    slack = 1 + SURE / sqrt(values.size)
    return deviation > 0 and stats.absmax <= slack * PEAK * deviation and _kurtosis(values) <= 3 + 6 * (slack - 1)


def _draw(ckpt: Checkpoint, stats: TensorStats) -> Draw | None:
    """Judge a suspect by a sample of its rows; None for a trained one."""
    import numpy as np

    values = _rows(ckpt, stats)
    rows, columns = values.shape
    deviation = float(values.std())
    if not isfinite(deviation) or deviation == 0 or stats.absmax > PEAK * deviation:
        return None
    values /= deviation
    squares = values * values
    kurtosis = float(np.square(squares).mean())  # the mean is next to nothing, or it is not fresh
    if not 1.7 < kurtosis < 3 + SURE * sqrt(24 / values.size) or abs(float(values.mean())) > SURE / sqrt(values.size):
        return None
    for axis, number, length in ((1, rows, columns), (0, columns, rows)):
        limit = (1 + SURE * sqrt(2 / number)) / length
        if float(squares.mean(axis).var()) > (kurtosis - 1) * limit or float(values.mean(axis).var()) > limit:
            return None
    norms = np.sqrt(squares.mean(1))
    kind = "uniform" if kurtosis < 2 else "normal" if kurtosis > 2.8 else "truncated normal"
    return Draw(stats.name, kind, float(norms.std() / norms.mean()))


def _kurtosis(values: NDArray[Any]) -> float:
    """Fourth moment over the squared second: 1.8 for a uniform distribution, 3 for a normal one."""
    squares = (values - values.mean()) ** 2
    second = float(squares.mean())
    return float((squares * squares).mean()) / second**2 if second else 0.0


def _rows(ckpt: Checkpoint, stats: TensorStats) -> NDArray[Any]:
    """Read rows of a matrix, float32 [rows, columns]: all where they fit in the sample, else runs of them spread evenly."""
    import numpy as np

    number, columns = _sides(stats) if len(stats.shape) != 2 else stats.shape
    width = columns * (FORMATS[stats.dtype].bits // 8)
    together = max(4, SAMPLE // RUNS // width)
    if number <= RUNS * together:
        return _read(ckpt, stats, 0, number * width).reshape(number, columns)
    starts = [run * (number - together) // (RUNS - 1) for run in range(RUNS)]
    return np.concatenate(
        [_read(ckpt, stats, start * width, together * width).reshape(together, columns) for start in starts]
    )


def _read(ckpt: Checkpoint, stats: TensorStats, begin: int, nbytes: int) -> NDArray[Any]:
    """Read values of a tensor as float32, from a byte within it."""
    import numpy as np

    shard = ckpt.shards[stats.shard]
    at = shard.data_start + shard.tensors[stats.name].data_offsets[0] + begin
    raw = ckpt.source.read(shard.name, at, nbytes)
    if len(raw) < nbytes:
        raise Skip(f"{shard.name} shrank while it was being read")
    return decode(stats.dtype, np.frombuffer(raw, FORMATS[stats.dtype].unsigned)).astype(np.float32)
