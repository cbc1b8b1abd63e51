"""Compares a merged model with what its base model and an adapter make: was the adapter merged, everywhere, once?

PEFT merges `base + scale · B·A` (peft/tuners/lora/layer.py, `get_delta_weight`). For each module this projects the difference
between the merged and the base weight on that update, rounded as a merge rounds it: 1 if it was merged, 0 if not, 2 if
twice. What is left over must be small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import TYPE_CHECKING, Literal

from ckptcheck.checkpoint.adapter import (
    LORA,
    PREFIX,
    SAVED,
    LoraPair,
    index_by_tail,
    list_lora_pairs,
    lora_scale,
    tail_of,
)
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.open import open_checkpoint, open_target
from ckptcheck.checkpoint.scan_options import ScanOptions
from ckptcheck.compare.bridge.tensor_layout import TensorLayout
from ckptcheck.compare.matching.cast import can_cast, canonicalize_nan, cast_patterns
from ckptcheck.compare.matching.side import ComparisonSide, build_checkpoint_side
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.values.dtypes import decode

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from ckptcheck.compare.matching.pairing import TensorPair
    from ckptcheck.compare.matching.tensor_files import TensorFiles

ROWS_BYTES = 1 << 26
"""Bytes of a float32 matrix that are computed at a time."""
MARGIN = 0.1
"""Distance from 1 that the factor of a merged adapter may have."""
MOST_LEFT_OVER = 0.25
"""Norm of the unexplained difference, relative to the update's. B·A computed in bf16 leaves 0.06 of a tiny update."""
MERGE_DTYPES = frozenset({"BF16", "F16", "F32", "F64"})
"""The dtypes in which a merge may have been computed."""

Outcome = Literal["merged", "unmerged", "scaled", "different", "too-small"]


@dataclass(frozen=True)
class ModuleMerge:
    """The fate of the adapter's update of one weight."""

    outcome: Outcome
    """`too-small`: the update is smaller than the rounding of the weight, which hides it."""
    factor: float = 1.0
    """How many times the update is in the merged weight."""
    left_over: float = 0.0
    """Norm of the difference that the update does not explain, relative to the update's norm."""


@dataclass(frozen=True)
class Adapter:
    """An adapter whose merge into a base model is to be checked."""

    target: str
    side: ComparisonSide = field(repr=False)
    pairs: Mapping[str, LoraPair] = field(repr=False)
    """Stored name of a weight of the base model → the LoRA pair that changes it."""
    scales: Mapping[str, float] = field(repr=False)
    """The same → the factor of B·A."""
    saved: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Stored name of a tensor of the base model → the tensor of the adapter that takes its place."""
    lacking: tuple[str, ...] = ()
    """Modules that the adapter changes and the base model does not have."""
    unsupported: Mapping[str, str] = field(default_factory=dict)
    """Module → why the adapter's change of it is not computed."""

    def changes(self, name: str) -> bool:
        """Whether the adapter changes a weight of the base model, by its stored name."""
        return name in self.pairs or name in self.saved


def is_adapter(target: str, *, follow_links: bool = False) -> bool:
    """Whether a target is an adapter rather than a whole model. Raises the exceptions of `open_target`."""
    evidence = open_target(target, options=ScanOptions(follow_links=follow_links))
    return isinstance(evidence, Checkpoint) and evidence.is_adapter


def open_adapter(target: str, base: ComparisonSide, *, follow_links: bool = False) -> Adapter:
    """Open an adapter and find what it changes in its base model.

    Raises CkptcheckError if it is no LoRA adapter, or if no part of it can be computed.
    """
    ckpt = open_checkpoint(target, options=ScanOptions(follow_links=follow_links))
    if not ckpt.is_adapter or ckpt.adapter is None:
        raise CkptcheckError(f"{target} is no adapter with its adapter_config.json", "name the folder that PEFT saved")
    settings = ckpt.adapter.value
    if settings.get("peft_type", "LORA") != "LORA":
        raise CkptcheckError(f"{target} is a {settings['peft_type']} adapter, and only LoRA is computed")
    has_dora = settings.get("use_dora") is True or any("lora_magnitude" in name for name in ckpt.tensors)
    by_tail = index_by_tail(base.stored)
    side = build_checkpoint_side(ckpt)
    pairs: dict[str, LoraPair] = {}
    scales: dict[str, float] = {}
    lacking, unsupported = [], {}
    for pair in list_lora_pairs(ckpt.tensors):
        names = by_tail.get(tail_of(f"{pair.module}.weight"), [])
        shapes = pair.base_shapes(ckpt.tensors)
        fitting = [name for name in names if base.stored[name].shape in shapes]
        name = f"{pair.module}.weight" if f"{pair.module}.weight" in names else fitting[0] if len(fitting) == 1 else ""
        scale = lora_scale(ckpt.adapter, pair.module)
        if not names:
            lacking.append(pair.module)
        elif has_dora:
            unsupported[pair.module] = "DoRA is not computed"
        elif scale is None:
            unsupported[pair.module] = "adapter_config.json does not give r and lora_alpha for it as plain numbers"
        elif lost := [part for part in (pair.up, pair.down) if part in side.malformed]:
            unsupported[pair.module] = f"{lost[0]} cannot be read: {side.malformed[lost[0]]}"
        elif name not in fitting:
            unsupported[pair.module] = "the adapter's matrices do not have its shape"
        else:
            pairs[name], scales[name] = pair, scale
    saved = {}
    for name in ckpt.tensors:
        if not LORA.fullmatch(name) and (match := SAVED.fullmatch(name)):
            plain = f"{match['module'].removeprefix(PREFIX)}.{match['part']}"
            names = by_tail.get(tail_of(plain), [])
            if name in side.left_out:
                continue
            if name in side.malformed:
                unsupported[plain] = f"{name} cannot be read: {side.malformed[name]}"
            elif plain in names or len(names) == 1:
                saved[plain if plain in names else names[0]] = name
            else:
                lacking.append(plain)
    if not pairs and not saved:
        reason = next(iter(unsupported.values()), f"{base.target} has none of the modules that it changes")
        raise CkptcheckError(f"{target} cannot be compared: {reason}")
    return Adapter(target, side, pairs, scales, saved, tuple(lacking), unsupported)


def measure_merges(
    adapter: Adapter, pairs: Sequence[TensorPair], sides: tuple[ComparisonSide, ComparisonSide]
) -> dict[str, ModuleMerge | str]:
    """Map each weight that the adapter changes to the fate of its update, or to the reason why that is unknown.

    Raises EvidenceError if a file cannot be read.
    """
    from ckptcheck.compare.matching.tensor_files import TensorFiles, UnreadableFile

    with ExitStack() as stack:
        base, merged, own = (stack.enter_context(TensorFiles(side.source)) for side in (*sides, adapter.side))
        try:
            return {pair.name: _measure_merge(adapter, pair, (base, merged, own)) for pair in pairs}
        except UnreadableFile as error:
            raise EvidenceError(f"cannot read {error.file}: {error.reason}") from error


def _measure_merge(
    adapter: Adapter, pair: TensorPair, files: tuple[TensorFiles, TensorFiles, TensorFiles]
) -> ModuleMerge | str:
    """Judge the fate of the adapter's update of one weight.

    Args:
        adapter: changes the weight.
        pair: the weight of the base model and of the merged one, of equal shape.
        files: of the base model, the merged one and the adapter.

    Returns the reason if the fate is unknown. Raises UnreadableFile.
    """
    import numpy as np

    base, merged = pair.first, pair.second
    if not isinstance(base, TensorLayout) or not isinstance(merged, TensorLayout):
        return "it is quantized"
    if not can_cast(base.dtype, "F32") or merged.dtype not in MERGE_DTYPES:
        return f"its dtype {merged.dtype} is none that an adapter is merged into"
    if (saved := adapter.saved.get(pair.names[0])) is not None:
        return _compare_saved(base, merged, adapter.side.stored[saved], files)
    lora = adapter.pairs[pair.names[0]]
    up, down = (_read(files[2], adapter.side.stored[name]) for name in (lora.up, lora.down))
    if up.shape[1] != down.shape[0]:
        return "the two matrices of the adapter have different ranks"
    if lora.is_embedding:
        up, down = down.T, up.T
    if (up.shape[0], down.shape[1]) != base.shape:
        up, down = down.T, up.T
    up = up * np.float32(adapter.scales[pair.names[0]])
    # A merge rounds to the dtype in which it is computed, and small updates vanish in that. Which dtype it was is not known.
    dtypes = sorted({merged.dtype, base.dtype, "BF16"} & MERGE_DTYPES)
    sums = {dtype: np.zeros(3) for dtype in dtypes}  # update·update, difference·update, difference·difference
    step = max(1, ROWS_BYTES // (4 * max(1, base.shape[1])))
    for begin in range(0, base.shape[0], step):
        end = min(begin + step, base.shape[0])
        before, after = (
            _read(side, layout.cut(0, begin, end)) for side, layout in zip(files[:2], (base, merged), strict=True)
        )
        exact, difference = before + up[begin:end] @ down, after - before
        for dtype in dtypes:
            rounded = decode(dtype, cast_patterns(exact.view(np.uint32), "F32", dtype)).astype(np.float32)
            update = rounded - before
            sums[dtype] += [np.vdot(update, update), np.vdot(difference, update), np.vdot(difference, difference)]
    return min((_judge(*map(float, sums[dtype])) for dtype in dtypes), key=lambda merge: merge.left_over)


def _compare_saved(
    base: TensorLayout,
    merged: TensorLayout,
    saved: TensorLayout,
    files: tuple[TensorFiles, TensorFiles, TensorFiles],
) -> ModuleMerge | str:
    """Compare a tensor that the adapter holds as a whole with the merged one."""
    import numpy as np

    if saved.shape != merged.shape or not can_cast(saved.dtype, merged.dtype) or not can_cast(base.dtype, merged.dtype):
        return f"it is {saved.dtype} of shape {list(saved.shape)} in the adapter"
    after = canonicalize_nan(files[1].read_tensor(merged), merged.dtype)
    own, before = (
        canonicalize_nan(cast_patterns(side.read_tensor(layout), layout.dtype, merged.dtype), merged.dtype)
        for side, layout in ((files[2], saved), (files[0], base))
    )
    if np.array_equal(own, after):
        return ModuleMerge("merged")
    return ModuleMerge("unmerged" if np.array_equal(before, after) else "different", 0.0)


def _judge(updates: float, shared: float, differences: float) -> ModuleMerge:
    """Judge from the squared norm of the update, its product with the difference, and the squared norm of the difference."""
    if not updates:
        return ModuleMerge("different", 0.0, inf) if differences else ModuleMerge("too-small", 0.0)
    factor = shared / updates
    left_over = sqrt(max(0.0, differences - factor * shared) / updates)
    if left_over > MOST_LEFT_OVER:
        return ModuleMerge("different", factor, left_over)
    if abs(factor - 1) <= MARGIN:
        return ModuleMerge("merged", factor, left_over)
    return ModuleMerge("unmerged" if abs(factor) <= MARGIN else "scaled", factor, left_over)


def _read(files: TensorFiles, layout: TensorLayout) -> NDArray[Any]:
    import numpy as np

    return np.asarray(decode(layout.dtype, files.read_tensor(layout)), np.float32)
