"""Finds damaged norms: weights that are zero throughout or over a stretch, that are constant, or that have mixed signs."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.linter.evidence import remembered
from ckptcheck.values.detectors.blank_weights import find_blank_tensors, find_blank_weights
from ckptcheck.values.detectors.byte_compare import map_pieces, read_patterns
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
"""A norm with fewer weights is too short to judge."""
MIN_NORMS = 4
"""Fewer norms are too few to judge a model or a shard."""
MIXED_SIGNS = (0.35, 0.65)
"""Share of negative weights in a piece of a matrix: about half."""
ONE_SIGN = 0.01
"""Share of negative weights that a norm may have by chance or training."""
MIN_WEIGHTS_FOR_SIGNS = 64
"""With fewer weights the share of negative ones means little."""
MIN_NEGATIVE_SHARE, NEARLY_ALL = 1 / 2, 0.9
"""Share of a kind's norms that have to have many negative weights, and share of the weights of a single norm that have to be
negative. SmolLM2's largest share is 0.47, in its first norm, and the next 0.005; with one subtracted, 0.996 and more."""
MIN_RAISED_NORMS, MIN_RAISED_SHARE, MAX_BELOW_ONE = 6, 3 / 4, 0.01
"""Norms of a kind, and their share, that have to be above one, and the share of weights below one that each may have. In every norm
of the layers of SmolLM2 and all-MiniLM-L6-v2 at least 98 % are below one."""
MOST_MOVED, MOST_CHANCE, MOST_NORMS_MOVED = 1 << 16, 16, 32
"""Bytes around a norm in which its numbers are looked for; numbers of its neighbours that are positive by chance at its ends; and
norms of a shard that are looked for."""
HEAD_NORM = re.compile(r"(^|[._])[qk]_?(layer|ln|norm)")
"""Names of norms of queries and keys, which may have any sign: changed together, the signs of both cancel out."""


def find_zero_norms(ckpt: Checkpoint) -> list[TensorStats]:
    """Return the all-zero norms, if zero does not mean one. In an unknown family at least half are not zero."""
    norms = [stats for stats in ckpt.values.tensors.values() if is_norm(stats)]
    zero = [stats for stats in norms if stats.zero and stats.name not in find_blank_tensors(ckpt)]
    is_sure = 2 * len(zero) <= len(norms) and not has_zero_centred_norms(ckpt)
    return zero if zero and (is_sure or has_plain_norms(ckpt)) else []


def find_lost_norms(ckpt: Checkpoint) -> tuple[list[TensorStats], str | None]:
    """Return the norms of the layers and the name of the final norm, if the layers' norms are all constant in a trained model.

    The model counts as trained if its final norm is not constant and its matrices do not look freshly drawn. Otherwise
    the name is None.
    """
    stack = ckpt.components.stack
    if stack is None or not has_constant_norms(ckpt) or looks_untrained(ckpt):
        return [], None
    if any(blank.prefix == stack.prefix for blank in find_blank_weights(ckpt)):
        return [], None
    near, inside = stack.prefix.rpartition(".")[0], stack.prefix + "."
    norms = [stats for stats in ckpt.values.tensors.values() if is_norm(stats)]
    layers = [stats for stats in norms if stats.name.startswith(inside)]
    trained_final_norms = [stats.name for stats in norms if _parent(stats.name) == near and not stats.constant]
    return layers, trained_final_norms[0] if trained_final_norms and len(layers) >= MIN_NORMS else None


def _parent(name: str) -> str:
    """Return the name of the module that holds the module of a weight."""
    return name.rpartition(".")[0].rpartition(".")[0]


def find_negative_norms(ckpt: Checkpoint) -> list[str]:
    """Return the norms of the layers from which one seems to be subtracted, as in families that multiply by 1 + weight.

    Nearly all weights of such a norm are negative; or many are, and most norms of its kind have many as well. Returns
    nothing if norms may be centred at zero, or if only a part of a file is shifted (see `find_misplaced_norms`). Reads
    and raises as `find_torn_norms`.
    """
    if not has_plain_norms(ckpt):
        return []
    negative = []
    for norms in _layer_norm_kinds(ckpt):
        shares = {stats.name: float((numbers < 0).mean()) for stats, numbers in norms}
        shifted = [name for name, share in shares.items() if share >= MIXED_SIGNS[0]]
        if len(shifted) < max(MIN_NORMS, MIN_NEGATIVE_SHARE * len(shares)):
            shifted = [name for name in shifted if shares[name] >= NEARLY_ALL]
        negative += shifted
    return negative if negative and not find_misplaced_norms(ckpt) and not find_offsets(ckpt) else []


def find_raised_norms(ckpt: Checkpoint) -> list[str]:
    """Return the norms of a kind to which one seems to be added: hardly any of them has weights below one.

    Returns nothing if norms may be centred at zero. Reads and raises as `find_torn_norms`.
    """
    if not has_plain_norms(ckpt):
        return []
    raised = []
    for norms in _layer_norm_kinds(ckpt):
        above = [stats.name for stats, numbers in norms if float((numbers < 1).mean()) <= MAX_BELOW_ONE]
        if len(above) >= max(MIN_RAISED_NORMS, MIN_RAISED_SHARE * len(norms)):
            raised += above
    return raised


def _layer_norm_kinds(ckpt: Checkpoint) -> list[list[tuple[TensorStats, NDArray[Any]]]]:
    """Return kind → the layers' norms that are not constant, with their weights; without norms of queries and keys."""
    norms = _read_norm_weights(ckpt)
    stack = ckpt.components.stack
    kinds: dict[str, list[tuple[TensorStats, NDArray[Any]]]] = {}
    for stats, numbers in norms if stack is not None else ():
        is_inside = stack is not None and stats.name.startswith(stack.prefix + ".")
        if is_inside and numbers.size >= MIN_WEIGHTS and not HEAD_NORM.search(stats.name):
            kinds.setdefault(name_pattern(stats.name), []).append((stats, numbers))
    return list(kinds.values())


def find_torn_norms(ckpt: Checkpoint) -> dict[str, tuple[int, int]]:
    """Return norm → [begin, end) of a stretch of zero weights, if most norms of its shape have no such stretch.

    It reads every norm. Returns nothing on the Hub, or if a zero means one. Raises OSError if reading fails.
    """
    if has_zero_centred_norms(ckpt):
        return {}
    norms_by_shape: dict[tuple[int, ...], list[tuple[str, tuple[int, int]]]] = {}
    for stats, numbers in _read_norm_weights(ckpt):
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
    """Return shard → the norms with as many negative weights as a matrix, if a third of their siblings have hardly any.

    Shifted data affect everything that follows. So there have to be at least MIN_NORMS in a shard, from three layers, and
    three in four of the norms from the first of them on: a model's first norm may have both signs by itself (SmolLM2's has).
    Returns nothing if a zero means one, since any sign is sound then. Reads and raises as `find_torn_norms`.
    """
    if has_zero_centred_norms(ckpt):
        return {}
    groups: dict[str, list[tuple[TensorStats, float]]] = {}
    for stats, numbers in _read_norm_weights(ckpt):
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


@remembered
def find_offsets(ckpt: Checkpoint) -> dict[str, tuple[int, list[str]]]:
    """Return shard → by how many bytes all its data lie behind the places in its header, and the norms that show it.

    A norm is the one long run of positive numbers among matrices. Where the same distance leads from the places of at least
    MIN_NORMS norms to such a run, every tensor of the shard holds its neighbour's numbers. It looks only where a quarter of the
    norms have a negative weight or NaN, and returns nothing where norms may be centred at zero. Reads and raises as
    `find_torn_norms`.
    """
    if not has_plain_norms(ckpt):
        return {}
    odd = {stats.name: not (numbers > 0).all() for stats, numbers in _read_norm_weights(ckpt)}
    found = {}
    for shard in {ckpt.tensor_to_file[name] for name in odd}:
        blocks = _list_norm_blocks(ckpt, shard, odd)
        if len(blocks) < MIN_NORMS or 4 * sum(any(odd[name] for name in block) for block in blocks) < len(blocks):
            continue
        distances: dict[int, list[str]] = {}
        for block in blocks[:MOST_NORMS_MOVED]:
            for distance in _find_distances(ckpt, block):
                distances.setdefault(distance, []).append(block[0])
        distance = max(distances, key=lambda each: (len(distances[each]), -abs(each)), default=0)
        names = distances.get(distance, [])
        if distance and len(names) >= MIN_NORMS and 2 * len(names) >= min(len(blocks), MOST_NORMS_MOVED):
            found[shard] = distance, names
    return found


def _list_norm_blocks(ckpt: Checkpoint, shard: str, norms: Collection[str]) -> list[list[str]]:
    """Return the norms of a shard in the order of their data, those that lie side by side together."""
    tensors = ckpt.shards[shard].tensors
    blocks: list[list[str]] = []
    last = ""
    for name in sorted(tensors, key=lambda each: tensors[each].data_offsets):
        if name in norms and last in norms and tensors[name].dtype == tensors[last].dtype:
            blocks[-1].append(name)
        elif name in norms:
            blocks.append([name])
        last = name
    return [block for block in blocks if sum(ckpt.tensors[name].shape[0] for name in block) >= MIN_WEIGHTS_FOR_SIGNS]


def _find_distances(ckpt: Checkpoint, block: list[str]) -> list[int]:
    """Return the distances in bytes at which the numbers of a block may lie: one run of positive numbers, about as long."""
    import numpy as np

    shard, dtype = ckpt.shards[ckpt.tensor_to_file[block[0]]], ckpt.tensors[block[0]].dtype
    place, length = shard.locate(block[0]), sum(ckpt.tensors[name].shape[0] for name in block)
    size = sum(ckpt.tensors[name].nbytes for name in block)
    width = size // length
    begin = max(place - MOST_MOVED, place - shard.tensors[block[0]].data_offsets[0])
    raw = ckpt.source.read(shard.name, begin, place - begin + size + MOST_MOVED)
    distances: list[int] = []
    for phase in range(width):
        usable = (len(raw) - phase) // width * width
        numbers = decode(dtype, np.frombuffer(raw[phase : phase + usable], FORMATS[dtype].unsigned))
        edges = np.flatnonzero(np.diff(np.concatenate(([0], numbers > 0, [0]))))
        runs = edges.reshape(-1, 2)  # of a matrix there are thousands, nearly all of them short
        lengths = runs[:, 1] - runs[:, 0]
        for first, last in runs[(lengths >= length) & (lengths <= length + MOST_CHANCE)].tolist():
            distances += [begin + phase + at * width - place for at in range(first, last - length + 1)]
    return distances


@remembered
def _read_norm_weights(ckpt: Checkpoint) -> list[tuple[TensorStats, NDArray[Any]]]:
    """Return the norms that are not constant, with their weights, read once for all rules."""

    def read(stats: TensorStats) -> NDArray[Any]:
        return decode(stats.dtype, read_patterns(ckpt, stats.name, 0, ckpt.tensors[stats.name].nbytes))

    norms = [
        stats
        for name, stats in ckpt.values.tensors.items()
        if ckpt.can_sample and name in ckpt.tensor_to_file and is_norm(stats) and not (stats.constant or stats.zero)
    ]
    return list(zip(norms, map_pieces(ckpt, read, norms), strict=True))


def _longest_zero_stretch(numbers: NDArray[Any]) -> tuple[int, int]:
    """Return [begin, end) of the longest stretch of zeros; (0, 0) if there is none."""
    import numpy as np

    edges = np.flatnonzero(np.diff(np.concatenate(([0], numbers == 0, [0]))))
    runs = list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
    return max(runs, key=lambda run: run[1] - run[0], default=(0, 0))
