"""Finds damaged norms: weights that are zero throughout or over a stretch, that are constant, or that have mixed signs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.values.detectors.blank_weights import find_blank_tensors, find_blank_weights
from ckptcheck.values.detectors.byte_compare import read_tensor_bytes
from ckptcheck.values.detectors.init_detection import has_constant_norms, looks_untrained
from ckptcheck.values.detectors.norm_convention import has_plain_norms, has_zero_centred_norms
from ckptcheck.values.detectors.roles import is_norm, name_pattern
from ckptcheck.values.dtypes import FORMATS, decode
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

MAX_ZERO_STRETCH = 1 / 8
"""Share of a norm's weights; a longer stretch of zeros counts as lost. A dead attention head may have up to this many."""
MIN_WEIGHTS = 16
"""Weights from which a norm is long enough to judge."""
MIN_NORMS = 4
"""Norms that it takes to judge a model or a shard."""
MIXED_SIGNS = (0.35, 0.65)
"""Share of negative weights in a piece of a matrix: about half."""
ONE_SIGN = 0.01
"""Share of negative weights that a norm may have by chance or training."""
MIN_WEIGHTS_FOR_SIGNS = 64
"""Weights from which the share of negative ones is meaningful."""


def find_zero_norms(ckpt: Checkpoint) -> list[TensorStats]:
    """Return the norms that are all zero where zero does not mean one. In a family that is not known, at least half must not be."""
    norms = [stats for stats in ckpt.values.tensors.values() if is_norm(stats)]
    zero = [stats for stats in norms if stats.zero and stats.name not in find_blank_tensors(ckpt)]
    is_sure = 2 * len(zero) <= len(norms) and not has_zero_centred_norms(ckpt)
    return zero if zero and (is_sure or has_plain_norms(ckpt)) else []


def find_lost_norms(ckpt: Checkpoint) -> tuple[list[TensorStats], str | None]:
    """Return the norms of the layers and the name of the final norm, if the layers' norms are all constant in a trained model.

    The model counts as trained if its final norm is not constant and its matrices do not look freshly drawn. Else the name is
    None.
    """
    stack = ckpt.components.stack
    if stack is None or not has_constant_norms(ckpt) or looks_untrained(ckpt):
        return [], None
    if any(blank.prefix == stack.prefix for blank in find_blank_weights(ckpt)):
        return [], None
    near, inside = stack.prefix.rpartition(".")[0], stack.prefix + "."
    norms = [stats for stats in ckpt.values.tensors.values() if is_norm(stats)]
    layers = [stats for stats in norms if stats.name.startswith(inside)]
    trained_final_norms = [
        stats.name for stats in norms if stats.name.rpartition(".")[0].rpartition(".")[0] == near and not stats.constant
    ]
    return layers, trained_final_norms[0] if trained_final_norms and len(layers) >= MIN_NORMS else None


def find_torn_norms(ckpt: Checkpoint) -> dict[str, tuple[int, int]]:
    """Return norm → [begin, end) of a stretch of zero weights, where most norms of its shape have no such stretch.

    It reads every norm. Returns nothing on the Hub, or if a zero means one. Raises OSError if reading fails.
    """
    if has_zero_centred_norms(ckpt):
        return {}
    norms_by_shape: dict[tuple[int, ...], list[tuple[str, tuple[int, int]]]] = {}
    for stats, numbers in _iter_norm_weights(ckpt):
        if numbers.size >= MIN_WEIGHTS:
            norms_by_shape.setdefault(stats.shape, []).append((stats.name, _longest_zero_stretch(numbers)))
    torn_norms: dict[str, tuple[int, int]] = {}
    for (length,), norms in norms_by_shape.items():
        torn = {name: stretch for name, stretch in norms if stretch[1] - stretch[0] > MAX_ZERO_STRETCH * length}
        # If the hidden size of a model is padded, all its norms end in zeros.
        if 3 * len(torn) < len(norms):
            torn_norms |= torn
    return torn_norms


def find_misplaced_norms(ckpt: Checkpoint) -> dict[str, list[str]]:
    """Return shard → the norms with as many negative weights as a matrix, where a third of their siblings have hardly any.

    Shifted data affect everything that follows. So there have to be at least MIN_NORMS in a shard, from three layers, and
    three in four of the norms from the first of them on: a model's first norm may have both signs by itself (SmolLM2's has).
    Returns nothing if a zero means one, since any sign is sound then. Reads and raises as `find_torn_norms`.
    """
    if has_zero_centred_norms(ckpt):
        return {}
    groups: dict[str, list[tuple[TensorStats, float]]] = {}
    for stats, numbers in _iter_norm_weights(ckpt):
        if numbers.size >= MIN_WEIGHTS_FOR_SIGNS:
            groups.setdefault(name_pattern(stats.name), []).append((stats, float((numbers < 0).mean())))
    norms_by_shard: dict[str, list[tuple[int, str, bool]]] = {}
    for members in groups.values():
        if len(members) > 2 and sorted(share for _, share in members)[len(members) // 3] <= ONE_SIGN:
            for stats, share in members:
                begin = ckpt.shards[stats.shard].tensors[stats.name].data_offsets[0]
                norms_by_shard.setdefault(stats.shard, []).append(
                    (begin, stats.name, MIXED_SIGNS[0] <= share <= MIXED_SIGNS[1])
                )
    misplaced = {}
    for shard, norms in norms_by_shard.items():
        signs = [mixed for _, _, mixed in sorted(norms)]
        names = [name for _, name, mixed in sorted(norms) if mixed]
        layers = {tuple(INDEX.findall(name)) for name in names}
        if len(names) >= MIN_NORMS and len(layers) > 2 and 4 * len(names) >= 3 * len(signs[signs.index(True) :]):
            misplaced[shard] = names
    return misplaced


def _iter_norm_weights(ckpt: Checkpoint) -> Iterator[tuple[TensorStats, NDArray[Any]]]:
    """Yield the norms that are not constant, with their weights."""
    # This comes before the import: it raises Skip if values are not read, and the rule then loads no numpy.
    tensors = ckpt.values.tensors
    import numpy as np

    for name, stats in tensors.items():
        if (
            ckpt.source.local is None
            or name not in ckpt.tensor_to_file
            or not is_norm(stats)
            or stats.constant
            or stats.zero
        ):
            continue
        width = FORMATS[stats.dtype].bits // 8
        raw = read_tensor_bytes(ckpt, name, 0, stats.shape[0] * width)
        yield stats, decode(stats.dtype, np.frombuffer(raw[: len(raw) // width * width], FORMATS[stats.dtype].unsigned))


def _longest_zero_stretch(numbers: NDArray[Any]) -> tuple[int, int]:
    """Return [begin, end) of the longest stretch of zeros; (0, 0) if there is none."""
    import numpy as np

    edges = np.flatnonzero(np.diff(np.concatenate(([0], numbers == 0, [0]))))
    runs = list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
    return max(runs, key=lambda run: run[1] - run[0], default=(0, 0))
