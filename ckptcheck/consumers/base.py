"""The input and the answers of a consumer.

A consumer builds its own modules out of a checkpoint's (``q_proj``, ``k_proj`` and ``v_proj`` become one ``qkv_proj``)
and looks each one up in the quantization config, by name and class. ckptcheck decides as that version of the consumer does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

LINEAR, EXPERTS, HEAD, EMBEDDING, OTHER = "linear", "experts", "head", "embedding", "other"
"""Roles of a module; a consumer has a branch of its code for each role."""


class Module(msgspec.Struct, frozen=True):
    """A module as one consumer builds it."""

    name: str
    """The path by which the consumer looks it up in the config."""
    class_name: str
    """Its class in the consumer (``QKVParallelLinear``)."""
    role: str
    """`LINEAR`, `EXPERTS`, `HEAD`, `EMBEDDING` or `OTHER`."""
    sources: tuple[str, ...] = ()
    """The checkpoint's modules that it loads."""
    is_quantizable: bool = True
    """Whether the consumer gives it a quantization config at all."""
    expert_projections: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    """For fused experts: the names of gate, if there is one, up and down of one expert in the checkpoint."""
    is_guess: bool = False
    """Whether name and class are guesses by the usual pattern, not recorded from a built model of this architecture."""
    rejects_unknown_tensors: bool = False
    """Whether the loader raises on a tensor of this module without a parameter (recorded for SGLang only)."""


class Decision(msgspec.Struct, frozen=True):
    """Whether a consumer builds a module quantized."""

    quantized: bool | None
    """None if the consumer raises (`error`) or if ckptcheck does not know (`reason`)."""
    scheme: str | None = None
    """The target, algorithm or pattern whose scheme the module gets."""
    entry: str | None = None
    """The entry of an ignore, target or pattern list that decides, as the config has it."""
    error: str | None = None
    """What the consumer raises, in our words."""
    splits_module: bool = False
    """Whether the error is that the lists treat the shards of a fused module differently."""
    reason: str | None = None
    """Why ckptcheck does not know, as one clause."""


UNQUANTIZED = Decision(quantized=False)
DecideModule = Callable[[Module], Decision]


class ConsumerError(Exception):
    """The consumer raises on this input; the message says what it does not accept, in our words."""


class SplitModuleError(ConsumerError):
    """The lists of the config treat the shards of one fused module differently."""


class UnknownBehavior(Exception):
    """ckptcheck does not know what the consumer does; the message says why, as one clause."""


class ModelStructure(msgspec.Struct, frozen=True):
    """How a consumer builds one architecture, as far as the lists of a config are concerned."""

    fused_modules: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Last component of a fused module → last components of its shards: the consumer's ``packed_modules_mapping``."""
    rename: Callable[[str], str] = str
    """Turns a name of the checkpoint, or an entry of a list, into the consumer's name."""
    default_skips: tuple[str, ...] = ()
    """The modules that transformers skips if the config has no list (its `get_keys_to_not_convert`)."""
    is_guess: bool = False
    """Whether the tables were not recorded from a built model of this architecture."""
    is_unknown: bool = False
    """Whether the tables lack even the architecture's class, and so what the consumer fuses and renames."""


class ConsumerInput(msgspec.Struct, frozen=True):
    """Everything that a consumer looks at when it reads a quantization config."""

    method: str
    """``quant_method``, as written in the config."""
    config: Mapping[str, Any]
    """The quantization config as parsed."""
    structure: ModelStructure = ModelStructure()
    """How the consumer builds the architecture."""
    packed: frozenset[str] | None = None
    """The checkpoint's modules with a tensor that is not F16, BF16 or F32; None if the tensors are unknown.
    vLLM derives the lists of GPTQ and AWQ from these."""
    plain: frozenset[str] | None = None
    """The checkpoint's modules with only F16, BF16 or F32 tensors; None if the tensors are unknown."""
