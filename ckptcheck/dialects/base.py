"""What a dialect is asked and what it answers.

A consumer builds modules out of a checkpoint's (``q_proj``, ``k_proj`` and ``v_proj`` become one ``qkv_proj``) and asks
its quantization config about each one, by name and class. A dialect answers as that version of the consumer does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

LINEAR, EXPERTS, HEAD, EMBEDDING, OTHER = "linear", "experts", "head", "embedding", "other"
"""What a module is to a consumer, which decides the branch it takes."""


@dataclass(frozen=True, slots=True)
class Module:
    """A module as one consumer builds it.

    name: the path by which it is judged. kind: its class (``QKVParallelLinear``). role: `LINEAR`, `EXPERTS`, `HEAD`,
    `EMBEDDING` or `OTHER`. parts: the checkpoint's modules that are loaded into it. quantizable: whether it is built
    with a quantization config at all. shards: the names of gate, up and down of one expert, for a fused one.
    guessed: nobody has built this architecture with this consumer; name and class follow the usual pattern.
    stops: its loader raises on a tensor for the module that it has no parameter for; asked of SGLang only.
    """

    name: str
    kind: str
    role: str
    parts: tuple[str, ...] = ()
    quantizable: bool = True
    shards: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    guessed: bool = False
    stops: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a consumer builds a module quantized.

    quantized: None where the consumer refuses (`error`) or nobody can tell (`reason`). scheme: the target, algorithm
    or pattern whose scheme it gets. entry: the entry of an ignore, target or pattern list that decided, as written.
    """

    quantized: bool | None
    scheme: str | None = None
    entry: str | None = None
    error: str | None = None
    reason: str | None = None


Judge = Callable[[Module], Verdict]


class Refused(Exception):
    """The consumer raises on this; the message says what it does not accept, in our words."""


class Unknown(Exception):
    """Nobody can tell what the consumer does; the message says why, as one clause."""


@dataclass(frozen=True)
class Structure:
    """How a consumer builds one architecture, as far as lists are concerned.

    fused: last part of a fused module → the last parts of what goes into it, the consumer's ``packed_modules_mapping``.
    rename: turns a name of the checkpoint, or an entry of a list, into the consumer's. skipped: what
    transformers skips where no list is given (its `get_keys_to_not_convert`).
    """

    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rename: Callable[[str], str] = str
    skipped: tuple[str, ...] = ()
    guessed: bool = False


@dataclass(frozen=True)
class Question:
    """What a dialect needs to read a list.

    method: ``quant_method``, as written in the config. config: the quantization config. structure: see there.
    packed: the checkpoint's modules that hold a tensor that is not F16, BF16 or F32, None where nobody looked; vLLM
    derives the lists of GPTQ and AWQ from them.
    plain: those that hold only such tensors, None where nobody looked.
    """

    method: str
    config: Mapping[str, Any]
    structure: Structure = Structure()
    packed: frozenset[str] | None = None
    plain: frozenset[str] | None = None
