"""Splits what an engine fuses into the checkpoint's tensors, so that a diagnosis names those."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from ckptcheck.consumers.engine_tensors import EXPERTS_TENSOR
from ckptcheck.live.refit.observations import DRAFT
from ckptcheck.live.refit.weight_names import has_whole_experts, trainer_weights

if TYPE_CHECKING:
    from ckptcheck.compare.diagnosis import TensorBits
    from ckptcheck.live.runtime.trainers.base import Weight

Read = Callable[[], "TensorBits"]


@dataclass(frozen=True)
class TensorPart:
    """The part of an engine's tensor, on one rank, that one tensor of the checkpoint fills."""

    engine_name: str
    begin: int
    """First flat element."""
    shape: tuple[int, ...]
    pitch: int = 0
    """Elements from one row to the next, where the engine pads rows; 0 where it does not."""

    def extract(self, whole: TensorBits) -> TensorBits:
        """Return this part of the tensor."""
        from ckptcheck.compare.diagnosis import TensorBits

        flat = whole.patterns.reshape(-1)
        if self.pitch:
            rows, columns = self.shape
            padded = flat[self.begin : self.begin + rows * self.pitch].reshape(rows, self.pitch)
            return TensorBits(whole.dtype, padded[:, :columns].copy())
        return TensorBits(whole.dtype, flat[self.begin : self.begin + prod(self.shape)].reshape(self.shape))


def list_parts(
    name: str, shape: tuple[int, ...], ranks: int, weights: Mapping[str, Weight]
) -> Iterator[tuple[str, TensorPart]]:
    """Yield the checkpoint's tensors that an engine's tensor consists of, in its order of elements.

    name, shape: of the engine's tensor on one rank. ranks: of the engine. weights: what the trainer exports, by name. A tensor of
    which a rank does not hold an even share of each source, or whose sources are not known, is yielded whole under its own name.
    """
    sources = trainer_weights(name, weights)
    if has_whole_experts(name, shape, sources):
        yield name, TensorPart(name, 0, shape)
        return
    shares = [prod(source.shape) // ranks for source in sources]
    is_even = all(prod(source.shape) == share * ranks for source, share in zip(sources, shares, strict=True))
    if sum(prod(source.shape) for source in sources) == prod(shape):  # every rank holds all of it
        shares, is_even = [prod(source.shape) for source in sources], True
    if not sources or not shape or not is_even or sum(shares) != prod(shape) or any(s % shape[-1] for s in shares):
        yield from _list_padded_experts(name, shape, ranks, sources) or [(name, TensorPart(name, 0, shape))]
        return
    begin = 0
    for source, share in zip(sources, shares, strict=True):
        own = shape if len(sources) == 1 else (share // shape[-1], shape[-1])
        yield source.name, TensorPart(name, begin, own)
        begin += share


def _list_padded_experts(
    name: str, shape: tuple[int, ...], ranks: int, sources: Sequence[Weight]
) -> list[tuple[str, TensorPart]]:
    """Return the parts of stacked experts that an engine pads, [] for any other tensor.

    SGLang pads the width of experts on a CPU to a multiple of 32 (configs/update_config.py): gate and up each in rows of their
    own, down in its columns. Ranks hold rows of gate and up, and columns of down.
    """
    if len(shape) != 3 or EXPERTS_TENSOR.fullmatch(name.removeprefix(DRAFT)) is None or len(sources) % shape[0]:
        return []
    experts, rows, pitch = shape
    halves = len(sources) // experts
    found = []
    for number, source in enumerate(sources):
        own = list(source.shape)
        axis = 0 if halves == 2 else 1
        if len(own) != 2 or own[axis] % ranks or rows % halves:
            return []
        own[axis] //= ranks
        if own[0] > rows // halves or own[1] > pitch:
            return []
        found.append((source.name, TensorPart(name, number * (rows // halves) * pitch, (own[0], own[1]), pitch)))
    return found
