"""Detects matrices that still hold the values of their initialiser, and heads and norms that were never trained.

Initialisers draw every element independently from one distribution. So the mean squares of rows differ only by chance:
their variance is (kurtosis - 1) / columns of their own square, and columns likewise. Training makes some rows and
columns larger than others, and leaves values far outside the bell curve: on real models each of these signs alone shows that
most matrices are trained. A matrix counts as being at its initialisation only if it shows none of them.

The variance of a mean of squares is textbook statistics; the initialisers are those of ``torch.nn.init``.
"""

from __future__ import annotations

import re
from functools import partial
from math import isfinite, prod, sqrt
from typing import TYPE_CHECKING, Any

import msgspec

from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.checkpoint.tensor import PLAIN
from ckptcheck.linter.evidence import remembered
from ckptcheck.values.detectors.byte_compare import map_pieces, read_patterns
from ckptcheck.values.detectors.norm_convention import has_plain_norms
from ckptcheck.values.detectors.roles import (
    NORM,
    find_vocabulary_tensors,
    group_by_kind,
    is_matrix,
    is_norm,
    is_scale,
    starts_at_zero,
)
from ckptcheck.values.dtypes import FORMATS, decode
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

STAYS_RANDOM = re.compile(
    r"lora_(embedding_)?A|vera_|randlora|random|gaussian_matrix|fourier|\brff\b|pooler|quantizer", re.IGNORECASE
)
"""Names of tensors that stay random by design: projections, Fourier features; the pooler of an encoder, which nothing uses."""
MIN_SIDE = 32
"""With fewer rows or columns chance may equal training."""
PREVIEW_BYTES = 1 << 12
"""Bytes of every matrix that are read first."""
SAMPLE_BYTES, SAMPLE_RUNS = 1 << 19, 16
"""Bytes of a suspect that are read, and the runs of rows in which they are read, spread evenly; at least 4 rows a run."""
MAX_GROUP_MEMBERS = 256
"""Members of a group that are read: if there are more (experts), the ones with the smallest `absmax`, as a drawn matrix has it."""
MAX_DEVIATIONS = 7.0
"""Standard deviations within which 10^9 normal values stay. A trained matrix seldom stays within them."""
CHANCE_DEVIATIONS = 4.0
"""Standard deviations that a statistic may be off by chance."""

SAMPLED_MATRICES = 16
"""Matrices that decide whether a checkpoint with constant norms is untrained."""
TRAINED_NORMS_PER_CONSTANT = 8
"""Trained norms for each constant one: with this many, low precision or a short training is no explanation."""


class InitSample(msgspec.Struct, frozen=True):
    """A matrix that looks like a sample of an initialiser's distribution."""

    name: str
    distribution: str
    """The distribution, as the message names it: "normal", "uniform" or "truncated normal"."""
    norm_spread: float
    """Standard deviation of the norms of its rows, relative to their mean."""


class TensorGroup(msgspec.Struct, frozen=True):
    """Matrices that should be alike: one per layer or expert, or a single one."""

    at_init: tuple[InitSample, ...]
    trained_count: int
    """How many of the members that were read are trained."""

    @property
    def is_mostly_at_init(self) -> bool:
        """Whether most members are at their initialisation."""
        return len(self.at_init) > self.trained_count


@remembered
def find_init_groups(ckpt: Checkpoint) -> list[TensorGroup]:
    """Return the groups with members at their initialisation if most groups of the model are trained; else nothing.

    It reads 4 KiB of every matrix, and 512 KiB (or 64 rows) of those that remain suspect. Raises Skip if a file shrank since
    its values were read, OSError if reading fails.
    """
    import numpy as np

    # Squares of absurd values overflow. Such a matrix does not count as being at its initialisation.
    with np.errstate(all="ignore"):
        return _find_init_groups(ckpt)


def _find_init_groups(ckpt: Checkpoint) -> list[TensorGroup]:
    groups = _list_fresh_looking(ckpt)
    examined = [sorted(members, key=lambda stats: stats.absmax)[:MAX_GROUP_MEMBERS] for members in groups]
    answers = map_pieces(ckpt, partial(_is_suspect, ckpt), [stats for some in examined for stats in some])
    suspects: list[tuple[list[TensorStats], int]] = []
    for some in examined:
        suspected = [stats for stats, is_suspect in zip(some, answers, strict=False) if is_suspect]
        suspects.append((sorted(suspected, key=lambda stats: stats.name), len(some)))
    if 2 * sum(2 * len(some) > number for some, number in suspects) >= len(suspects):
        # The model was never trained, or hardly: no group stands out.
        return []
    init_groups = []
    for some, number in suspects:
        samples = tuple(sample for stats in some if (sample := _test_for_init(ckpt, stats)) is not None)
        if samples:
            init_groups.append(TensorGroup(samples, number - len(samples)))
    return init_groups


def find_init_heads(ckpt: Checkpoint) -> list[str]:
    """Return the reward, value and classification heads that still hold the initial values of ``torch.nn.Linear``.

    It draws uniformly within ± 1 / sqrt(columns). Training by half a percent carries some values over that bound, so even a
    head of one row can be judged. A head with a normal initialiser looks like one that training hardly moved.
    """
    heads = []
    for name in ckpt.components.score_head_tensors:
        stats = ckpt.values.tensors.get(name)
        if stats is None or not is_matrix(stats) or len(stats.shape) != 2 or stats.constant or prod(stats.shape) < 512:
            continue
        number, bound = prod(stats.shape), 1 / sqrt(stats.shape[1])
        if not bound * (1 - 12 / number) <= stats.absmax * (1 + 2**-8) <= bound * (1 + 2**-7):
            continue
        # Squares cannot overflow here: no magnitude exceeds the bound.
        values = _read_sample_rows(ckpt, stats)
        if abs(_kurtosis(values) - 1.8) < CHANCE_DEVIATIONS * sqrt(3 / values.size):
            heads.append(name)
    return heads


@remembered
def looks_untrained(ckpt: Checkpoint) -> bool:
    """Whether the whole checkpoint looks freshly initialised: its norms are constant, and its matrices look drawn.

    Norms start at one (or zero), and any training moves them. A model without norms needs nearly all vectors constant.
    Norms may also be constant because they were lost, or multiplied into the matrices that follow them. So half of
    SAMPLED_MATRICES matrices have to look drawn too, if any can be judged. On the Hub no matrix is read. An initialiser
    leaves a spread of numbers, and norms of one: if most matrices hold one number, or all norms are zero and should not
    be, no initialiser made the checkpoint. Raises as `find_init_groups`.
    """
    if not has_constant_norms(ckpt) or _is_mostly_constant(ckpt) or (has_plain_norms(ckpt) and _has_zero_norms(ckpt)):
        return False
    import numpy as np

    matrices = [stats for members in _list_fresh_looking(ckpt) for stats in members]
    sampled = matrices[:: max(1, -(-len(matrices) // SAMPLED_MATRICES))] if ckpt.can_sample else []
    with np.errstate(all="ignore"):
        at_init = sum(_is_suspect(ckpt, stats) and _test_for_init(ckpt, stats) is not None for stats in sampled)
    return 2 * at_init >= len(sampled)


def _is_mostly_constant(ckpt: Checkpoint) -> bool:
    """Whether most matrices hold one number only, so that nothing drew them."""
    matrices = [
        stats.constant or stats.zero
        for stats in ckpt.values.tensors.values()
        if is_matrix(stats) and min(stats.shape) > 1 and not (is_scale(stats.name) or starts_at_zero(stats.name))
    ]
    return 2 * sum(matrices) > len(matrices)


def _has_zero_norms(ckpt: Checkpoint) -> bool:
    """Whether the checkpoint has norms, and all of them are zero."""
    norms = [stats.zero for stats in ckpt.values.tensors.values() if is_norm(stats)]
    return bool(norms) and all(norms)


@remembered
def find_initial_constants(ckpt: Checkpoint) -> frozenset[str]:
    """Return the tensors of an untrained model that an initialiser may have left zero, or one number throughout.

    It does so to a whole kind of tensor, in every layer. A tensor whose sibling in another layer holds different numbers was lost.
    So was an embedding or a head. Empty for a trained model. Raises as `looks_untrained`.
    """
    if not looks_untrained(ckpt):
        return frozenset()
    stack = ckpt.components.stack
    inside = f"{stack.prefix}." if stack is not None else "\0"
    vocabulary = find_vocabulary_tensors(ckpt)
    kinds: dict[str, list[TensorStats]] = {}
    for name, stats in ckpt.values.tensors.items():
        if name not in vocabulary:
            kinds.setdefault(INDEX.sub("{}", name, 1), []).append(stats)
    constants: set[str] = set()
    for kind, members in kinds.items():
        drawn = [stats for stats in members if not (stats.constant or stats.zero)]
        for same in (
            [stats for stats in members if stats.zero],
            [stats for stats in members if stats.constant and not stats.zero],
        ):
            others = len(members) - len(same) if same and same[0].zero else len(drawn)
            # Outside the layers, the number in a name may distinguish modules of different kinds.
            if others < (1 if kind.startswith(inside) else max(2, len(same))):
                constants.update(stats.name for stats in same)
    return frozenset(constants)


def has_constant_norms(ckpt: Checkpoint) -> bool:
    """Whether every norm of the layers is one number throughout; without norms, whether nearly every vector is."""
    stack = ckpt.components.stack
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


def find_constant_norms(ckpt: Checkpoint) -> dict[str, tuple[TensorStats, ...]]:
    """Return name pattern → the norms that are one number, if at least eight times as many siblings are not."""
    constant_norms = {}
    for pattern, stats_of_kind in group_by_kind(ckpt).items():
        if not NORM.search(pattern):
            continue
        members = [stats for stats in stats_of_kind if len(stats.shape) == 1 and stats.shape[0] > 1]
        constant = tuple(stats for stats in members if stats.constant and not _is_unused(ckpt, stats.name))
        if constant and TRAINED_NORMS_PER_CONSTANT * len(constant) <= sum(not stats.constant for stats in members):
            constant_norms[pattern] = constant
    return constant_norms


def _list_fresh_looking(ckpt: Checkpoint) -> list[list[TensorStats]]:
    """Return the matrices of the loaded files that training should have changed, and that are large enough to judge, by kind."""
    may_be_unused = _count_sharing_layers(ckpt) > 0
    kinds = (
        [stats for stats in members if _is_drawable(stats) and not (may_be_unused and _is_unused(ckpt, stats.name))]
        for kind, members in group_by_kind(ckpt).items()
        if not (is_scale(kind) or starts_at_zero(kind) or STAYS_RANDOM.search(kind))
    )
    return [members for members in kinds if members]


def _is_drawable(stats: TensorStats) -> bool:
    return (
        is_matrix(stats)
        and FORMATS[stats.dtype].bits >= 16
        and min(_matrix_shape(stats)) >= MIN_SIDE
        and not (stats.constant or stats.zero or stats.nan or stats.inf)
    )


@remembered
def _count_sharing_layers(ckpt: Checkpoint) -> int:
    return (ckpt.config.integer("num_kv_shared_layers") if ckpt.config is not None else None) or 0


def _is_unused(ckpt: Checkpoint, name: str) -> bool:
    """Whether nothing uses a tensor: the key and value projections of layers that reuse those of other layers (Gemma 3n)."""
    if not (shared := _count_sharing_layers(ckpt)):
        return False
    stack, depth = ckpt.components.stack, ckpt.components.num_layers
    if depth is None or stack is None or not name.startswith(stack.prefix + "."):
        return False
    layer, _, rest = name.removeprefix(stack.prefix + ".").partition(".")
    return layer.isdigit() and int(layer) >= depth - shared and bool(re.search(r"\b[kv]_(proj|norm)\b", rest))


def _matrix_shape(stats: TensorStats) -> tuple[int, int]:
    """Return rows and columns. A stack of matrices (packed experts) counts as one matrix, a kernel as one row per channel."""
    if len(stats.shape) < 2 or 0 in stats.shape:
        return 0, 0
    if len(stats.shape) == 3 and stats.shape[2] >= MIN_SIDE:
        return stats.shape[0] * stats.shape[1], stats.shape[2]
    return stats.shape[0], prod(stats.shape[1:])


def _is_suspect(ckpt: Checkpoint, stats: TensorStats) -> bool:
    """Whether a few values from the middle of a matrix have a bell curve that agrees with its largest magnitude."""
    import numpy as np

    width = FORMATS[stats.dtype].bits // 8
    nbytes = prod(stats.shape) * width
    values = _read_values(
        ckpt, stats, max(0, nbytes - PREVIEW_BYTES) // 2 // width * width, min(PREVIEW_BYTES, nbytes)
    ).ravel()
    with np.errstate(all="ignore"):  # each thread has a state of its own
        deviation = float(values.std(dtype="f8"))
        slack = 1 + CHANCE_DEVIATIONS / sqrt(values.size)
        return (
            deviation > 0
            and stats.absmax <= slack * MAX_DEVIATIONS * deviation
            and _kurtosis(values) <= 3 + 6 * (slack - 1)
        )


def _test_for_init(ckpt: Checkpoint, stats: TensorStats) -> InitSample | None:
    """Judge a suspect by a sample of its rows. Returns None for a trained matrix."""
    import numpy as np

    values = _read_sample_rows(ckpt, stats)
    rows, columns = values.shape
    deviation = float(values.std())
    if not isfinite(deviation) or deviation == 0 or stats.absmax > MAX_DEVIATIONS * deviation:
        return None
    values = values / deviation
    squares = values * values
    # The fourth moment is the kurtosis as long as the mean is near zero, which the next line checks.
    kurtosis = float(np.square(squares).mean())
    if not 1.7 < kurtosis < 3 + CHANCE_DEVIATIONS * sqrt(24 / values.size) or abs(
        float(values.mean())
    ) > CHANCE_DEVIATIONS / sqrt(values.size):
        return None
    for axis, number, length in ((1, rows, columns), (0, columns, rows)):
        limit = (1 + CHANCE_DEVIATIONS * sqrt(2 / number)) / length
        if float(squares.mean(axis).var()) > (kurtosis - 1) * limit or float(values.mean(axis).var()) > limit:
            return None
    norms = np.sqrt(squares.mean(1))
    kind = "uniform" if kurtosis < 2 else "normal" if kurtosis > 2.8 else "truncated normal"
    return InitSample(stats.name, kind, float(norms.std() / norms.mean()))


def _kurtosis(values: NDArray[Any]) -> float:
    """Return the fourth moment over the squared second: 1.8 for a uniform distribution, 3 for a normal one."""
    squares = (values - values.mean()) ** 2
    second = float(squares.mean())
    return float((squares * squares).mean()) / second**2 if second else 0.0


def _read_sample_rows(ckpt: Checkpoint, stats: TensorStats) -> NDArray[Any]:
    """Read rows of a matrix as float32 [rows, columns]: all rows if they fit in the sample, else runs spread evenly."""
    import numpy as np

    number, columns = _matrix_shape(stats) if len(stats.shape) != 2 else stats.shape
    width = columns * (FORMATS[stats.dtype].bits // 8)
    together = max(4, SAMPLE_BYTES // SAMPLE_RUNS // width)
    if number <= SAMPLE_RUNS * together:
        return _read_values(ckpt, stats, 0, number * width).reshape(number, columns)
    starts = [run * (number - together) // (SAMPLE_RUNS - 1) for run in range(SAMPLE_RUNS)]
    return np.concatenate(
        [
            values.reshape(together, columns)
            for values in map_pieces(
                ckpt, lambda start: _read_values(ckpt, stats, start * width, together * width), starts
            )
        ]
    )


def _read_values(ckpt: Checkpoint, stats: TensorStats, begin: int, nbytes: int) -> NDArray[Any]:
    """Read `nbytes` of a tensor as float32 values, from byte `begin` of the tensor."""
    return decode(stats.dtype, read_patterns(ckpt, stats.name, begin, nbytes)).astype("f4")
