"""What a tensor's values may be depends on what it is for."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.anatomy import HEAD
from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.checkpoint.tensor import PLAIN
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

ROUTER = re.compile(
    r"(^|\.)(gate|router|router\.(classifier|weight|proj|layer)|gate\.wg|moe\.gate|ffn\.router)\.weight$"
)
NORM = re.compile(r"norm[^.]*\.weight$|\.ln_?\w*\.weight$", re.IGNORECASE)
BOUND = re.compile(r"(_min|_max|\bmin|\bmax|mask|masked_bias)$")
"""Buffers whose Inf is meant: ranges of clamps (Gemma 4's audio tower), attention masks."""
STARTS_AT_ZERO = re.compile(r"lora_(embedding_)?B(\.|$)|lora_B|zero_point|qzeros|g_idx|relative_attention_bias")
"""What is zero by design at the start of training, or always may be."""


def is_matrix(stats: TensorStats) -> bool:
    """Whether a tensor has at least two dimensions and elements that are numbers of the model, not packed; no bias."""
    shaped = len(stats.shape) >= 2 and prod(stats.shape) >= 16
    return shaped and stats.dtype in PLAIN and not stats.name.endswith("bias")


def is_norm(stats: TensorStats) -> bool:
    """Whether a tensor is the weight of a norm."""
    return len(stats.shape) == 1 and stats.shape[0] > 1 and stats.dtype in PLAIN and bool(NORM.search(stats.name))


def is_packed(stats: TensorStats) -> bool:
    """Whether a tensor holds quantized weights as integers: packed words, or int8."""
    last = stats.name.rpartition(".")[2]
    return len(stats.shape) >= 2 and (
        last in ("weight_packed", "qweight") or (last == "weight" and stats.dtype in ("I8", "U8", "I32"))
    )


def is_scale(name: str) -> bool:
    """Whether a tensor holds scales of a quantization."""
    return "scale" in name.rpartition(".")[2]


def may_be_infinite(stats: TensorStats) -> bool:
    """Whether Inf is no wonder here: scalars, bounds, attention masks (GPT-2 calls its square one ``attn.bias``)."""
    mask = stats.name.endswith(".bias") and len(stats.shape) > 2
    return not stats.shape or mask or bool(BOUND.search(stats.name))


def is_router(ckpt: Checkpoint, stats: TensorStats) -> bool:
    """Whether a tensor chooses experts: called so, and with a row for each of several experts."""
    experts = ckpt.anatomy.experts
    return (
        bool(ROUTER.search(stats.name))
        and len(stats.shape) == 2
        and (stats.shape[0] == experts if isinstance(experts, int) else stats.shape[0] > 1)
    )


def vital(ckpt: Checkpoint) -> dict[str, str]:
    """Return the tensors that hold the rows of the token embedding and of the output head → which of both it is."""
    wholes: dict[str, tuple[str, ...]] = {
        name: (name,) for name in (ckpt.anatomy.embedding, ckpt.anatomy.head) if name is not None
    }
    return {
        part: "the output head" if HEAD.search(name) or name.endswith("output_layer.weight") else "the token embedding"
        for name, parts in (wholes | ckpt.vocabularies).items()
        for part in parts
    }


def looks_untrained(ckpt: Checkpoint) -> bool:
    """Whether the whole checkpoint looks freshly initialised: all norms of its layers are constant.

    Norms start at one (or zero); any training moves them. Without norms, nearly all vectors have to be constant.
    """
    stack = ckpt.anatomy.stack
    if stack is None:
        return False
    inside = stack.prefix + "."
    vectors = [
        stats
        for name, stats in ckpt.values.tensors.items()
        if len(stats.shape) == 1 and stats.shape[0] > 1 and name.startswith(inside) and stats.dtype in PLAIN
    ]
    norms = [stats for stats in vectors if NORM.search(stats.name)]
    if norms:
        return all(stats.constant for stats in norms)
    return bool(vectors) and sum(stats.constant for stats in vectors) >= 0.9 * len(vectors)


def template(name: str) -> str:
    """Write a tensor's name with {} for its numbers: siblings in other layers share it."""
    return INDEX.sub("{}", name)
