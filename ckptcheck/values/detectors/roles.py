"""Recognises the role of a tensor (norm, router, scale, vocabulary …), which decides what its values may be."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import prod
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from ckptcheck.checkpoint.components import HEAD
from ckptcheck.checkpoint.layout import INDEX
from ckptcheck.checkpoint.tensor import PLAIN
from ckptcheck.linter.evidence import remembered
from ckptcheck.values.stats import TensorStats

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

T = TypeVar("T")
ROUTER = re.compile(
    r"(^|\.)(gate|router|router\.(classifier|weight|proj|layer)|gate\.wg|moe\.gate|ffn\.router)\.weight$"
)
FEED_FORWARD = re.compile(
    r"(^|[._])(gate_proj|up_proj|down_proj|gate_up_proj|fc1|fc2|fc_in|fc_out|lin1|lin2|w1|w2|w3|wi|wi_0|wi_1|dense_h_to_4h"
    r"|dense_4h_to_h|mlp\.c_fc|mlp\.c_proj|intermediate\.dense|(layer|h|block)s?\.\{\}\.output\.dense)\.weight$"
)
"""Names of the matrices of a feed-forward block."""
QUERIES = re.compile(
    r"(^|[._])(q|query|q_proj|wq|q_lin|query_proj|o_proj|out_proj|wo|out_lin|attn_out|attention\.output\.dense|attention\.dense"
    r"|attn\.c_proj)\.weight$"
)
"""Names of matrices with a row or a column for each channel of a query head."""
KEYS = re.compile(r"(^|[._])(k|v|key|value|k_proj|v_proj|wk|wv|k_lin|v_lin|key_proj|value_proj)\.weight$")
"""Names of matrices with a row for each channel of a key-value head."""
NORM = re.compile(r"norm[^.]*\.weight$|\.ln_?\w*\.weight$|\.layer_norm_weight$", re.IGNORECASE)
"""Names of norms. Transformer Engine keeps a norm in the projection that follows it: ``linear_qkv.layer_norm_weight``."""
BOUND = re.compile(r"(_min|_max|\bmin|\bmax|mask|masked_bias)$")
"""Names of buffers that hold Inf on purpose: ranges of clamps (Gemma 4's audio tower), attention masks."""
AT_ZERO = re.compile(
    r"(lora|hira|peanut|lily)_B|(lora|hira)_embedding_[AB]|lora_b(\.|$)|lora[_.]up(\.|$)|lora_E|hada_w2_[ab]|lokr_w[12]"
    r"|(^|[._])b?oft_(embedding_)?[rR](\.|$)|(^|[._])bone_|miss_block|shadow_up|(fourierft|waveft)_spectrum|randlora_lambda"
    r"|c3a_kernel|(^|[._])mask_token|zero_point|qzeros|g_idx|relative_attention_bias|(^|\.)exp_avg(_sq)?$"
)
"""Names of tensors that are zero by design at the start of training, or always may be: the matrix of an adapter that makes it
start as a no-op (names of PEFT 0.21, MLX, diffusers, LyCORIS and kohya), the moments of an optimizer."""


@lru_cache(1 << 14)
def _kind_starts_at_zero(kind: str) -> bool:
    return AT_ZERO.search(kind) is not None


def starts_at_zero(name: str) -> bool:
    """Whether the name says that a tensor may be zero. It is decided once for each kind: several rules ask it of every tensor."""
    return _kind_starts_at_zero(name_pattern(name))


def is_matrix(stats: TensorStats) -> bool:
    """Whether a tensor is a weight matrix: two dimensions or more, at least 16 elements, plain numbers, not a bias."""
    return _holds_matrix(stats.shape, stats.dtype) and not stats.name.endswith("bias")


@lru_cache(1 << 12)
def _holds_matrix(shape: tuple[int, ...], dtype: str) -> bool:
    return dtype in PLAIN and len(shape) >= 2 and prod(shape) >= 16


def is_norm(stats: TensorStats) -> bool:
    """Whether a tensor is the weight of a norm."""
    return len(stats.shape) == 1 and stats.shape[0] > 1 and stats.dtype in PLAIN and bool(NORM.search(stats.name))


def is_packed(stats: TensorStats) -> bool:
    """Whether a tensor holds quantized weights as integers: packed words, blocks (also of all experts), or int8."""
    last = stats.name.rpartition(".")[2]
    packed = last == "qweight" or last.endswith(("weight_packed", "proj_packed", "_blocks"))
    words = last == "weight" and stats.dtype in ("I8", "U8", "I32")
    return len(stats.shape) >= 2 and stats.dtype not in PLAIN and (packed or words)


def is_scale(name: str) -> bool:
    """Whether a tensor holds scales of a quantization."""
    return "scale" in name.rpartition(".")[2]


def may_be_infinite(stats: TensorStats) -> bool:
    """Whether a tensor may hold Inf: a scalar, a bound, an attention mask (GPT-2 calls its square mask ``attn.bias``)."""
    mask = stats.name.endswith(".bias") and len(stats.shape) > 2
    return not stats.shape or mask or bool(BOUND.search(stats.name))


@lru_cache(1 << 14)
def _kind_is_router(kind: str) -> bool:
    return ROUTER.search(kind) is not None


def is_router(ckpt: Checkpoint, stats: TensorStats) -> bool:
    """Whether a tensor is a router: its name says so, and it has a row for each of several experts."""
    if len(stats.shape) != 2 or not _kind_is_router(name_pattern(stats.name)):
        return False
    experts = ckpt.components.num_experts
    return stats.shape[0] == experts if isinstance(experts, int) else stats.shape[0] > 1


def find_vocabulary_tensors(ckpt: Checkpoint) -> dict[str, str]:
    """Return tensor → "the token embedding" or "the output head", for the tensors that hold their rows."""
    wholes: dict[str, tuple[str, ...]] = {
        name: (name,) for name in (ckpt.components.embedding, ckpt.components.lm_head) if name is not None
    }
    return {
        part: "the output head" if HEAD.search(name) or name.endswith("output_layer.weight") else "the token embedding"
        for name, parts in (wholes | ckpt.vocabulary_tensors).items()
        for part in parts
    }


@lru_cache(1 << 18)  # a dozen detectors ask it of every tensor
def name_pattern(name: str) -> str:
    """Return a tensor's name with {} in place of its numbers: siblings in other layers have the same pattern."""
    return INDEX.sub("{}", name)


@remembered
def group_by_kind(ckpt: Checkpoint) -> Mapping[str, list[TensorStats]]:
    """Return name pattern → the tensors of the loaded files with it, in their order, so that a kind is judged by its name once.

    Raises Skip if values are not read.
    """
    kinds: dict[str, list[TensorStats]] = {}
    for name, stats in ckpt.values.tensors.items():
        if name in ckpt.tensor_to_file:
            kinds.setdefault(name_pattern(name), []).append(stats)
    return kinds


def group_by_file(
    ckpt: Checkpoint, found: Iterable[T], name_of: Callable[[T], str] = attrgetter("name")
) -> dict[str, list[T]]:
    """Return file → what was found in tensors that lie in it, because each file gets one finding. name_of: gives the tensor."""
    by_file: dict[str, list[T]] = {}
    for one in found:
        by_file.setdefault(ckpt.tensor_to_file[name_of(one)], []).append(one)
    return by_file
