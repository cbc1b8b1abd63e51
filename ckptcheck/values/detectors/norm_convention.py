"""Determines the factor of a norm's weight of zero: zero, or one in families that multiply by 1 + weight."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.architecture import can_tie

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

CENTRED_AT_ZERO = re.compile(r"gemma|qwen3_(next|5)|qwen4|nemotron|minimax_m3|muse_|step3p[57]|videoprism")
"""model_type of families that multiply by 1 + weight in transformers 5.23, and of their relatives that may."""


def has_zero_centred_norms(ckpt: Checkpoint) -> bool:
    """Whether norms multiply by 1 + weight, so that a zero means one, by a model_type of the config or Megatron's arguments."""
    if ckpt.arguments is not None:
        return any(ckpt.arguments.get(name) for name in ("apply_layernorm_1p", "layernorm_zero_centered_gamma"))
    return ckpt.config is not None and is_zero_centred(ckpt.config.value)


def is_zero_centred(settings: dict[str, Any]) -> bool:
    """Whether a model_type of a config is of a family that multiplies by 1 + weight."""
    return any(CENTRED_AT_ZERO.search(name) for name in _iter_model_types(settings))


def _iter_model_types(settings: dict[str, Any], depth: int = 4) -> Iterator[str]:
    """Yield the model_type of a config and of all its parts."""
    if isinstance(name := settings.get("model_type"), str):
        yield name
    for part in settings.values() if depth else ():
        if isinstance(part, dict):
            yield from _iter_model_types(part, depth - 1)


def has_plain_norms(ckpt: Checkpoint) -> bool:
    """Whether norms certainly multiply by their weight itself.

    This is known for architectures that transformers can build, and for Megatron runs that saved their arguments.
    """
    if has_zero_centred_norms(ckpt):
        return False
    if ckpt.arguments is not None:
        return bool(ckpt.arguments)
    return ckpt.config is not None and can_tie(ckpt.config.architecture) is not None
