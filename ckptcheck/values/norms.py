"""What the weights of norms may be: not zero, neither throughout nor over a stretch, and of one sign in nearly all places."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.values.compare import read
from ckptcheck.values.dtypes import FORMATS, decode
from ckptcheck.values.fresh import has_constant_norms, looks_untrained
from ckptcheck.values.roles import is_norm, template
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptcheck.checkpoint.checkpoint import Checkpoint

CENTRED_AT_ZERO = re.compile(r"gemma|qwen3_(next|5)|qwen4|nemotron|minimax_m3|muse_|step3p[57]|videoprism")
"""model_type of families that compute with 1 + weight in transformers 5.23."""
STRETCH = 1 / 8
"""The share of a norm's weights that are zero in a row above which they are lost: a head that is dead may have that many."""
LEAST = 16
"""Weights below which a norm is too short to tell."""
FEW = 4
"""Norms that make a model of which one can say that all are constant."""
MIXED = (0.35, 0.65)
"""The share of negative weights that a piece of a matrix has: about half."""
ONE_SIGN = 0.01
"""The share of negative weights that a norm may have by chance or training."""
LONG = 64
"""Weights from which the share of signs says something."""


def centred_at_zero(ckpt: Checkpoint) -> bool:
    """Whether norms multiply by 1 + weight, so that zeros mean one: by any model_type in the config, or Megatron's arguments."""
    if ckpt.arguments is not None:
        return any(ckpt.arguments.get(name) for name in ("apply_layernorm_1p", "layernorm_zero_centered_gamma"))
    return ckpt.config is not None and any(CENTRED_AT_ZERO.search(name) for name in _types(ckpt.config.value))


def _types(settings: dict[str, Any], depth: int = 4) -> Iterator[str]:
    """Yield the model_type of a config and of all its parts."""
    if isinstance(name := settings.get("model_type"), str):
        yield name
    for part in settings.values() if depth else ():
        if isinstance(part, dict):
            yield from _types(part, depth - 1)


def zero_norms(ckpt: Checkpoint) -> list[TensorStats]:
    """Return the norms that are all zero, where at least half are not and zero does not mean one."""
    norms = [stats for stats in ckpt.values.tensors.values() if is_norm(stats)]
    zero = [stats for stats in norms if stats.zero]
    return zero if 2 * len(zero) <= len(norms) and not centred_at_zero(ckpt) else []


def lost_norms(ckpt: Checkpoint) -> tuple[list[TensorStats], str | None]:
    """Return the norms of the layers and the final norm, where the former are all constant and neither it nor the matrices are.

    The name is None where that is not so. Matrices that look drawn are those of a model that was never trained.
    """
    stack = ckpt.anatomy.stack
    if stack is None or not has_constant_norms(ckpt) or looks_untrained(ckpt):
        return [], None
    near, inside = stack.prefix.rpartition(".")[0], stack.prefix + "."
    norms = [stats for stats in ckpt.values.tensors.values() if is_norm(stats)]
    layers = [stats for stats in norms if stats.name.startswith(inside)]
    moved = [
        stats.name for stats in norms if stats.name.rpartition(".")[0].rpartition(".")[0] == near and not stats.constant
    ]
    return layers, moved[0] if moved and len(layers) >= FEW else None


def torn_norms(ckpt: Checkpoint) -> dict[str, tuple[int, int]]:
    """Return norm → the weights [begin, end) in a row that are zero, where most norms of its shape have no such stretch.

    Reads every norm; nothing is looked for on the Hub, nor where zero means one. Raises OSError where reading fails.
    """
    if centred_at_zero(ckpt):
        return {}
    alike: dict[tuple[int, ...], list[tuple[str, tuple[int, int]]]] = {}
    for stats, numbers in _norms(ckpt):
        if numbers.size >= LEAST:
            alike.setdefault(stats.shape, []).append((stats.name, _stretch(numbers)))
    found: dict[str, tuple[int, int]] = {}
    for (length,), norms in alike.items():
        torn = {name: place for name, place in norms if place[1] - place[0] > STRETCH * length}
        if 3 * len(torn) < len(norms):  # the hidden size of a model may be padded: then all norms are
            found |= torn
    return found


def misplaced_norms(ckpt: Checkpoint) -> dict[str, list[str]]:
    """Return shard → the norms that have the signs of a matrix, a third of whose siblings has hardly a negative weight.

    Data that are shifted hit all that follows. So they have to be FEW or more in a shard, of three layers, and three of four
    norms from the first of them on: the first norm of a model may be so by itself (SmolLM2's is). Nothing is said where zero
    means one: there any sign is sound. Reads as `torn_norms`.
    """
    if centred_at_zero(ckpt):
        return {}
    families: dict[str, list[tuple[TensorStats, float]]] = {}
    for stats, numbers in _norms(ckpt):
        if numbers.size >= LONG:
            families.setdefault(template(stats.name), []).append((stats, float((numbers < 0).mean())))
    placed: dict[str, list[tuple[int, str, bool]]] = {}
    for members in families.values():
        if len(members) > 2 and sorted(share for _, share in members)[len(members) // 3] <= ONE_SIGN:
            for stats, share in members:
                begin = ckpt.shards[stats.shard].tensors[stats.name].data_offsets[0]
                placed.setdefault(stats.shard, []).append((begin, stats.name, MIXED[0] <= share <= MIXED[1]))
    found = {}
    for shard, norms in placed.items():
        signs = [mixed for _, _, mixed in sorted(norms)]
        names = [name for _, name, mixed in sorted(norms) if mixed]
        layers = {tuple(INDEX.findall(name)) for name in names}
        if len(names) >= FEW and len(layers) > 2 and 4 * len(names) >= 3 * len(signs[signs.index(True) :]):
            found[shard] = names
    return found


def _norms(ckpt: Checkpoint) -> Iterator[tuple[TensorStats, NDArray[Any]]]:
    """Yield the norms that are not one number throughout, with their weights."""
    tensors = ckpt.values.tensors  # first, as it skips a rule that loads no numpy then
    import numpy as np

    for name, stats in tensors.items():
        if ckpt.source.local is None or name not in ckpt.holders or not is_norm(stats) or stats.constant or stats.zero:
            continue
        width = FORMATS[stats.dtype].bits // 8
        raw = read(ckpt, name, 0, stats.shape[0] * width)
        yield stats, decode(stats.dtype, np.frombuffer(raw[: len(raw) // width * width], FORMATS[stats.dtype].unsigned))


def _stretch(numbers: NDArray[Any]) -> tuple[int, int]:
    """Return [begin, end) of the longest stretch of zeros; (0, 0) where there is none."""
    import numpy as np

    edges = np.flatnonzero(np.diff(np.concatenate(([0], numbers == 0, [0]))))
    runs = list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
    return max(runs, key=lambda run: run[1] - run[0], default=(0, 0))
