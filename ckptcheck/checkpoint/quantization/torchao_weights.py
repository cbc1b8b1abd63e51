"""Reads torchao's description of its quantized weights: their class, their parts and their blocks.

A weight of torchao is a tensor subclass. A file stores its parts (``q_proj._weight_qdata``, ``q_proj._weight_scale``), and
`__metadata__` has an entry for the whole (``q_proj.weight``), which names the parts. Source: torchao 0.18,
prototype/safetensors/safetensors_support.py `flatten_tensor_state_dict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import msgspec

from ckptcheck.checkpoint.document import parse_object
from ckptcheck.checkpoint.tensor import Tensor
from ckptcheck.text.formatting import format_shape

LONGEST = 8192
"""Longest entry that is read, in characters; torchao 0.18 writes some 500."""
PLAIN = "Tensor"
"""The class of a weight that is not quantized."""
ONE_A_NUMBER = {
    "Int8Tensor": ("I8",),
    "IntxUnpackedToInt8Tensor": ("I8",),
    "Float8Tensor": ("F8_E4M3", "F8_E5M2"),
}
"""Class that stores one number in each element → the dtypes of its numbers."""
FLOATS = ("F32", "BF16", "F16", "F64")


class TorchaoWeight(msgspec.Struct, frozen=True):
    """A quantized weight as torchao describes it."""

    name: str
    """The name of the whole: ``q_proj.weight``."""
    kind: str
    """Its class."""
    parts: tuple[str, ...]
    """The names of its parts: ``qdata``, ``scale``."""
    block: tuple[int, ...]
    """How many numbers along each dimension share a scale; () if the class does not give it."""

    def tensor_name(self, part: str) -> str:
        """Return the name under which a part is stored."""
        module, _, leaf = self.name.rpartition(".")
        return f"{module}._{leaf}_{part}".removeprefix(".")


def read_torchao_weights(metadata: Mapping[str, str]) -> Iterator[TorchaoWeight]:
    """Yield the quantized weights that the `__metadata__` of a file describes; other entries are left out."""
    for name, text in metadata.items():
        if "_tensor_data_names" not in text or len(text) > LONGEST:
            continue
        value, _ = parse_object(text.encode())
        if value is None:
            continue
        kind, parts, data = value.get("_type"), value.get("_tensor_data_names"), value.get("_data")
        if not isinstance(kind, str) or kind == PLAIN or not isinstance(parts, list):
            continue
        block = data.get("block_size") if isinstance(data, dict) else None
        sides = block if isinstance(block, list) and all(type(side) is int and side > 0 for side in block) else ()
        yield TorchaoWeight(name, kind, tuple(part for part in parts if isinstance(part, str)), tuple(sides))


def list_torchao_faults(weight: TorchaoWeight, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, str]]:
    """Yield the tensors of a weight that are missing or that its class refuses, and why, as the end of a sentence."""
    stored = {part: tensors[name] for part in weight.parts if (name := weight.tensor_name(part)) in tensors}
    for part in weight.parts:
        if part not in stored:
            yield weight.tensor_name(part), "is missing"
    dtypes = ONE_A_NUMBER.get(weight.kind)
    numbers, scale = stored.get("qdata"), stored.get("scale")
    if dtypes is None or numbers is None:
        return
    if numbers.dtype not in dtypes:
        yield weight.tensor_name("qdata"), f"is {numbers.dtype}, and not {' or '.join(dtypes)}"
    if scale is not None and scale.dtype not in FLOATS:
        yield weight.tensor_name("scale"), f"is {scale.dtype}, and no float"
    if not weight.block:
        return
    if len(numbers.shape) != len(weight.block) or any(
        of_block > side for side, of_block in zip(numbers.shape, weight.block, strict=True)
    ):
        yield (
            weight.tensor_name("qdata"),
            f"is {format_shape(numbers.shape)}, and its blocks are {format_shape(weight.block)}",
        )
        return
    blocks = tuple(-(-side // of_block) for side, of_block in zip(numbers.shape, weight.block, strict=True))
    for part in ("scale", "zero_point"):
        if part not in stored or (prod(blocks) == 1 and prod(stored[part].shape) == 1):
            continue
        if stored[part].shape != blocks:
            yield (
                weight.tensor_name(part),
                f"is {format_shape(stored[part].shape)}, and {format_shape(numbers.shape)} numbers in blocks of "
                f"{format_shape(weight.block)} need {format_shape(blocks)}",
            )
