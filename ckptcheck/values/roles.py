"""What a tensor's values may be depends on what it is for."""

from __future__ import annotations

import re
from functools import cache
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
NORM = re.compile(r"norm[^.]*\.weight$|\.ln_?\w*\.weight$|\.layer_norm_weight$", re.IGNORECASE)
"""Transformer Engine keeps a norm in the projection that follows it: ``linear_qkv.layer_norm_weight``."""
BOUND = re.compile(r"(_min|_max|\bmin|\bmax|mask|masked_bias)$")
"""Buffers whose Inf is meant: ranges of clamps (Gemma 4's audio tower), attention masks."""
AT_ZERO = re.compile(
    r"(lora|hira|peanut|lily)_B|(lora|hira)_embedding_[AB]|lora_b(\.|$)|lora[_.]up(\.|$)|lora_E|hada_w2_[ab]|lokr_w[12]"
    r"|(^|[._])b?oft_(embedding_)?[rR](\.|$)|(^|[._])bone_|miss_block|shadow_up|(fourierft|waveft)_spectrum|randlora_lambda"
    r"|c3a_kernel|(^|[._])mask_token|zero_point|qzeros|g_idx|relative_attention_bias|(^|\.)exp_avg(_sq)?$"
)
"""What is zero by design at the start of training, or always may be: the part of an adapter by which it starts as nothing
(PEFT 0.21, and as MLX, diffusers, LyCORIS and kohya name it), the moments of an optimizer."""


@cache
def starts_at_zero(name: str) -> bool:
    """Whether a tensor may be zero by its name. Several rules ask it of every tensor."""
    return AT_ZERO.search(name) is not None


def is_matrix(stats: TensorStats) -> bool:
    """Whether a tensor has at least two dimensions and elements that are numbers of the model, not packed; no bias."""
    shaped = len(stats.shape) >= 2 and prod(stats.shape) >= 16
    return shaped and stats.dtype in PLAIN and not stats.name.endswith("bias")


def is_norm(stats: TensorStats) -> bool:
    """Whether a tensor is the weight of a norm."""
    return len(stats.shape) == 1 and stats.shape[0] > 1 and stats.dtype in PLAIN and bool(NORM.search(stats.name))


def is_packed(stats: TensorStats) -> bool:
    """Whether a tensor holds quantized weights as integers: packed words or blocks, also of all experts, or int8."""
    last = stats.name.rpartition(".")[2]
    packed = last == "qweight" or last.endswith(("weight_packed", "proj_packed", "_blocks"))
    words = last == "weight" and stats.dtype in ("I8", "U8", "I32")
    return len(stats.shape) >= 2 and stats.dtype not in PLAIN and (packed or words)


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


def template(name: str) -> str:
    """Write a tensor's name with {} for its numbers: siblings in other layers share it."""
    return INDEX.sub("{}", name)
