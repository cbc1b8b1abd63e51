"""Reads the state that bitsandbytes stores beside a weight of 4 bits: its shape, its blocks, and how their scales are stored.

Format: `QuantState.as_dict` of bitsandbytes 0.50 (functional.py): a JSON object, as the bytes of a U8 tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from ckptcheck.checkpoint.document import parse_object
from ckptcheck.checkpoint.quantization.storage import ModuleStorage
from ckptcheck.text.formatting import count, format_shape

BITS = {"U8": 8, "F16": 16, "BF16": 16, "F32": 32}
"""dtype of the packed weight (`bnb_4bit_quant_storage`) → its bits."""
LONGEST = 4096
"""Longest state that is read, in bytes; a state of bitsandbytes has some 170."""
MOST_SIDES, LARGEST = 8, 1 << 40
"""Most dimensions, and largest size, for which the product is computed; no weight reaches either."""


@dataclass(frozen=True)
class BitsandbytesState:
    """What the state declares about the weight beside it."""

    shape: tuple[int, ...]
    """The shape of the weight before it was packed."""
    block: int
    """How many numbers share a scale."""
    nested_block: int | None
    """How many scales share a scale of their own; None if the scales are not quantized."""


def parse_state(raw: bytes) -> BitsandbytesState | None:
    """Parse the bytes of a state; None if bitsandbytes does not understand them."""
    value, _ = parse_object(raw)
    if value is None:
        return None
    shape, nested = value.get("shape"), value.get("nested_blocksize")
    block: Any = value.get("blocksize")
    if not isinstance(shape, list) or len(shape) > MOST_SIDES or not all(_is_size(side) for side in shape):
        return None
    if not _is_size(block) or not (nested is None or _is_size(nested)):
        return None
    return BitsandbytesState(tuple(shape), block, nested)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value < LARGEST


def list_state_faults(state: BitsandbytesState, stored: ModuleStorage) -> Iterator[tuple[str, str]]:
    """Yield the role of each tensor that does not fit the state beside it, and why, as the end of a sentence."""
    weight, absmax, nested = stored.weight, stored.parts.get("absmax"), stored.parts.get("nested_absmax")
    numbers = prod(state.shape)
    if weight is not None and weight.dtype in BITS:
        in_one = BITS[weight.dtype] // 4
        if prod(weight.shape) != -(-numbers // in_one):
            yield (
                weight.role,
                f"holds {prod(weight.shape) * in_one:,} numbers of 4 bits, and its quant_state says {format_shape(state.shape)}",
            )
    if absmax is None:
        return
    scales, of_block = -(-numbers // state.block), f"one for {state.block} numbers"
    if prod(absmax.shape) != scales:
        yield "absmax", f"has {count(prod(absmax.shape), 'scale')}, and its quant_state says {scales:,}, {of_block}"
    elif state.nested_block is not None and nested is not None:
        own, of_block = -(-scales // state.nested_block), f"one for {state.nested_block} scales of absmax"
        if prod(nested.shape) != own:
            yield (
                "nested_absmax",
                f"has {count(prod(nested.shape), 'scale')}, and its quant_state says {own:,}, {of_block}",
            )
    if state.nested_block is not None and nested is None:
        yield "absmax", "is quantized itself by its quant_state, and nested_absmax is missing"
    elif state.nested_block is None and nested is not None:
        yield "nested_absmax", "is stored, and its quant_state knows nothing of it"
