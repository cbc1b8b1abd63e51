"""The columns of rollouts.

Axes: T tokens in all, N sequences, S spans of weight versions, P positions with full distributions, L layers, k entries of a top k
or experts of a token, V ids of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Axis = Literal["tokens", "sequences", "bounds", "spans", "positions"]
"""What the first axis counts. bounds: the sequences and one more."""


@dataclass(frozen=True)
class Column:
    """The required form of a column."""

    dtypes: tuple[str, ...]
    """The dtypes that are read, as safetensors spells them; the first is the one that is written."""
    axis: Axis
    """What the first axis counts."""
    trailing: tuple[int | None, ...] = ()
    """Sizes of the axes after the first; None: any size."""


_NUMBER = Column(("F32", "F64"), "tokens")
_ROUTING = Column(("I16", "I32"), "tokens", (None, None))
_TOP_IDS = Column(("I32",), "tokens", (None,))
_TOP = Column(("F32", "F64"), "tokens", (None,))
_FULL = Column(("F32", "F64"), "positions", (None,))

COLUMNS = {
    "tokens": Column(("I32",), "tokens"),
    "starts": Column(("I64",), "bounds"),
    "prompt_lengths": Column(("I32", "I64"), "sequences"),
    "response_mask": Column(("BOOL", "U8"), "tokens"),
    "engine_logprobs": _NUMBER,
    "trainer_logprobs": _NUMBER,
    "reference_logprobs": _NUMBER,
    "version_spans": Column(("I64",), "spans", (3,)),
    "engine_routing": _ROUTING,
    "trainer_routing": _ROUTING,
    "engine_top_ids": _TOP_IDS,
    "engine_top_logprobs": _TOP,
    "trainer_top_ids": _TOP_IDS,
    "trainer_top_logprobs": _TOP,
    "full_positions": Column(("I64",), "positions"),
    "engine_full_logprobs": _FULL,
    "trainer_full_logprobs": _FULL,
    "rewards": Column(("F32", "F64"), "sequences"),
    "finish": Column(("I16", "I32"), "sequences"),
    "advantages": _NUMBER,
}
"""Name of a column → its required form."""
REQUIRED = ("tokens", "starts", "prompt_lengths")
WIDTHS = {"BOOL": "u1", "U8": "u1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "F32": "<f4", "F64": "<f8"}
"""dtype of safetensors → dtype of numpy. Booleans are read as bytes, because a numpy bool can hold no byte but 0 and 1."""
SIDES = ("engine", "trainer", "reference")
