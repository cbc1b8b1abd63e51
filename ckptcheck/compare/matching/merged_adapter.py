"""Compares a merged model with what its base model and an adapter make: was the adapter merged, everywhere, once?

PEFT merges `base + scale · B·A` (peft/tuners/lora/layer.py, `get_delta_weight`); into the experts of a layer, which it changes
as one parameter, one such update each (`ParamWrapper`). For each module this projects the difference
between the merged and the base weight on that update, rounded as a merge rounds it: 1 if it was merged, 0 if not, 2 if
twice. What is left over must be small.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import structs

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
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]

    from ckptcheck.checkpoint.tensor import Tensor
    from ckptcheck.compare.matching.pairing import TensorPair
    from ckptcheck.compare.matching.tensor_files import TensorFiles

ROWS_BYTES = 1 << 26
"""Bytes of a float32 matrix that are computed at a time."""
PARTS = {"gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3")), "down_proj": (("down_proj",), ("w2",))}
"""A parameter with all experts of a layer → the names under which checkpoints store the parts of one expert, in their order."""
EXPERT = re.compile(r"\.(?P<expert>\d+)\.(?P<part>[^.]+)\.weight$")
LATER = ("up_proj", "w3")
"""The parts that follow another one in their parameter."""
MARGIN = 0.1
"""Distance from 1 that the factor of a merged adapter may have."""
MOST_LEFT_OVER = 0.25
"""Norm of the unexplained difference, relative to the update's. B·A computed in bf16 leaves 0.06 of a tiny update."""
MERGE_DTYPES = frozenset({"BF16", "F16", "F32", "F64"})
"""The dtypes in which a merge may have been computed."""

Outcome = Literal["merged", "unmerged", "scaled", "misordered", "different", "too-small"]


class ModuleMerge(msgspec.Struct, frozen=True):
    """The fate of the adapter's update of one weight."""

    outcome: Outcome
    """`too-small`: the update is smaller than the rounding of the weight, which hides it."""
    factor: float = 1.0
    """How many times the update is in the merged weight."""
    left_over: float = 0.0
    """Norm of the difference that the update does not explain, relative to the update's norm."""


class Change(msgspec.Struct, frozen=True):
    """What a merge may have added to a weight."""

    factors: tuple[tuple[Matrix, Matrix], ...]
    """(up, down) of each matrix of the weight."""
    is_misordered: bool = False
    """Whether it takes the columns of B expert by expert, and not rank by rank as PEFT."""


class Update(msgspec.Struct, frozen=True):
    """The adapter's change of one stored weight: of a matrix, or of some experts of the parameter that has all of a layer."""

    pair: LoraPair
    scale: float
    """The factor of B·A."""
    count: int = 0
    """Experts that the pair changes; 0 for a pair that changes one matrix."""
    expert: int | None = None
    """The expert whose weight it is; None for all."""
    rows: tuple[int, int] = (0, 0)
    """The rows of an expert's matrix that the weight has: gate and up are one matrix to PEFT."""

    def part_of(self, name: str, shape: tuple[int, ...]) -> Update:
        """Return the update of one expert's matrix, by its name, where the base model stores all and the merged one each."""
        found = EXPERT.search(name)
        if not self.count or self.expert is not None or len(shape) != 2 or found is None:
            return self
        begin = shape[0] if found["part"] in LATER else 0
        return msgspec.structs.replace(self, expert=int(found["expert"]), rows=(begin, begin + shape[0]))

    def compute(self, lora_a: Matrix, lora_b: Matrix, shape: tuple[int, ...]) -> list[Change]:
        """Return the changes that a merge may have made: those of PEFT's releases, then the one of a usual mistake.

        lora_a, lora_b: float32, [rank, inputs] and [outputs, rank], with the ranks of all experts: those of an expert follow
        each other in A, those of a rank in B. shape: of the weight.
        """
        if not self.count:
            if self.pair.is_embedding:
                lora_b, lora_a = lora_a.T, lora_b.T
            if (lora_b.shape[0], lora_a.shape[1]) != shape:
                lora_b, lora_a = lora_a.T, lora_b.T
            return [Change(((lora_b, lora_a),))]
        down = lora_a.reshape(self.count, -1, lora_a.shape[1])
        up = lora_b.reshape(lora_b.shape[0], -1, self.count).transpose(2, 0, 1)
        misread = lora_b.reshape(lora_b.shape[0], self.count, -1).transpose(1, 0, 2)
        found = []
        for is_misordered, left in ((False, up), (True, misread)):
            # PEFT 0.18 lays every parameter out as [experts, inputs, outputs], later releases only those of GPT-OSS
            for first, second in ((left, down), (down.transpose(0, 2, 1), left.transpose(0, 2, 1))):
                numbers = range(self.count) if self.expert is None else range(self.count)[self.expert :][:1]
                begin, end = self.rows if self.expert is not None else (0, first.shape[1])
                if (end - begin, second.shape[2]) == shape[-2:] and end <= first.shape[1]:
                    factors = tuple((first[number, begin:end], second[number]) for number in numbers)
                    found.append(Change(factors, is_misordered))
        return found


@dataclass(frozen=True)
class Adapter:
    """An adapter whose merge into a base model is to be checked."""

    target: str
    side: ComparisonSide = field(repr=False)
    updates: Mapping[str, Update] = field(repr=False)
    """Stored name of a weight of the base model → what changes it."""
    saved: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Stored name of a tensor of the base model → the tensor of the adapter that takes its place."""
    lacking: tuple[str, ...] = ()
    """Modules that the adapter changes and the base model does not have."""
    unsupported: Mapping[str, str] = field(default_factory=dict)
    """Module → why the adapter's change of it is not computed."""
    rank: int | None = None
    """`r` of the config; modules may have their own."""

    def changes(self, name: str) -> bool:
        """Whether the adapter changes a weight of the base model, by its stored name."""
        return name in self.updates or name in self.saved


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
    updates: dict[str, Update] = {}
    lacking, unsupported = [], {}
    listed = settings.get("target_parameters")
    parameters = [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else []
    for pair in list_lora_pairs(ckpt.tensors):
        names = by_tail.get(tail_of(f"{pair.module}.weight"), [])
        shapes = pair.base_shapes(ckpt.tensors)
        fitting = [name for name in names if base.stored[name].shape in shapes]
        name = f"{pair.module}.weight" if f"{pair.module}.weight" in names else fitting[0] if len(fitting) == 1 else ""
        scale = lora_scale(ckpt.adapter, pair.module)
        experts: dict[str, Update] = {}
        if not names and parameters:
            experts = find_expert_updates(pair, ckpt, base.stored, by_tail, parameters, scale or 1.0)
        if not names and not experts:
            lacking.append(pair.module)
        elif has_dora:
            unsupported[pair.module] = "DoRA is not computed"
        elif scale is None:
            unsupported[pair.module] = "adapter_config.json does not give r and lora_alpha for it as plain numbers"
        elif lost := [part for part in (pair.up, pair.down) if part in side.malformed]:
            unsupported[pair.module] = f"{lost[0]} cannot be read: {side.malformed[lost[0]]}"
        elif experts:
            updates |= experts
        elif name not in fitting:
            unsupported[pair.module] = "the adapter's matrices do not have its shape"
        else:
            updates[name] = Update(pair, scale)
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
    if not updates and not saved:
        reason = next(iter(unsupported.values()), f"{base.target} has none of the modules that it changes")
        raise CkptcheckError(f"{target} cannot be compared: {reason}")
    rank = ckpt.adapter.value.get("r") if ckpt.adapter is not None else None
    return Adapter(target, side, updates, saved, tuple(lacking), unsupported, rank if type(rank) is int else None)


def find_expert_updates(
    pair: LoraPair,
    adapter: Checkpoint,
    stored_in: Mapping[str, TensorLayout] | Mapping[str, Tensor],
    by_tail: Mapping[str, Sequence[str]],
    parameters: Sequence[str],
    scale: float,
) -> dict[str, Update]:
    """Return what a pair changes of a layer's experts, which transformers holds in one parameter of three dimensions.

    PEFT wraps the module once for each of its parameters, so that the names of all but one have `base_layer` in them; the shapes
    tell which parameter a pair changes. The base model stores it whole, or expert by expert.

    stored_in: the base model's tensors. by_tail: their names by the end, see `index_by_tail`. parameters: `target_parameters` of
    adapter_config.json, as mlp.experts.gate_up_proj.
    """
    module = pair.module
    while module.endswith(".base_layer"):
        module = module.removesuffix(".base_layer")
    ranks, inputs = adapter.tensors[pair.down].shape
    outputs = adapter.tensors[pair.up].shape[0]
    sizes = ((outputs, inputs), (inputs, outputs))
    found: dict[str, Update] = {}
    for parameter in parameters:
        inside, _, last = parameter.rpartition(".")
        if not f".{module}".endswith(f".{inside}"):
            continue
        for whole in by_tail.get(tail_of(f"{module}.{last}"), ()):
            shape = stored_in[whole].shape
            if len(shape) == 3 and shape[0] and not ranks % shape[0] and shape[1:] in sizes:
                found[whole] = Update(pair, scale, shape[0])
        for names in PARTS.get(last, ()):
            numbered: dict[int, list[str]] = {}
            while all(
                stored := [by_tail.get(tail_of(f"{module}.{len(numbered)}.{name}.weight"), ()) for name in names]
            ):
                numbered[len(numbered)] = [one[0] for one in stored]
            if not numbered or ranks % len(numbered):
                continue
            shapes = [stored_in[name].shape for name in numbered[0]]
            if all(len(shape) == 2 for shape in shapes) and (sum(shape[0] for shape in shapes), shapes[0][1]) in sizes:
                for expert, stored_names in numbered.items():
                    begin = 0
                    for name, shape in zip(stored_names, shapes, strict=True):
                        found[name] = Update(pair, scale, len(numbered), expert, (begin, begin + shape[0]))
                        begin += shape[0]
    return found


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
    update = adapter.updates[pair.names[0]].part_of(pair.name, base.shape)
    up, down = (files[2].read_numbers(adapter.side.stored[name]) for name in (update.pair.up, update.pair.down))
    if up.shape[1] != down.shape[0]:
        return "the two matrices of the adapter have different ranks"
    changes = update.compute(down, up * np.float32(update.scale), base.shape)
    if not changes:
        return "its experts are stored in another form than the base model's"
    outcomes = [_measure_change(base, merged, change.factors, files) for change in changes if not change.is_misordered]
    best = min(outcomes, key=lambda merge: merge.left_over)
    if best.outcome == "different":
        for change in changes:
            if change.is_misordered and _measure_change(base, merged, change.factors, files).outcome == "merged":
                return structs.replace(best, outcome="misordered")
    return best


def _measure_change(
    base: TensorLayout,
    merged: TensorLayout,
    factors: Sequence[tuple[Matrix, Matrix]],
    files: tuple[TensorFiles, TensorFiles, TensorFiles],
) -> ModuleMerge:
    """Judge how much of a change is in the merged weight. factors: (up, down) of each matrix of the weight."""
    import numpy as np

    # A merge rounds to the dtype in which it is computed, and small updates vanish in that. Which dtype it was is not known.
    dtypes = sorted({merged.dtype, base.dtype, "BF16"} & MERGE_DTYPES)
    sums = {dtype: np.zeros(3) for dtype in dtypes}  # update·update, difference·update, difference·difference
    rows, columns = base.shape[-2:]
    step = max(1, ROWS_BYTES // (4 * max(1, columns)))
    for number, (up, down) in enumerate(factors):
        layouts = [layout.cut(0, number, number + 1) if len(base.shape) == 3 else layout for layout in (base, merged)]
        for begin in range(0, rows, step):
            end = min(begin + step, rows)
            before, after = (
                side.read_numbers(layout.cut(len(base.shape) - 2, begin, end)).reshape(-1, columns)
                for side, layout in zip(files[:2], layouts, strict=True)
            )
            exact, difference = before + up[begin:end] @ down, after - before
            for dtype in dtypes:
                rounded = decode(dtype, cast_patterns(exact.view(np.uint32), "F32", dtype)).astype(np.float32)
                change = rounded - before
                sums[dtype] += [np.vdot(change, change), np.vdot(difference, change), np.vdot(difference, difference)]
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
