"""One side of a comparison: where its tensors lie, and what its config declares."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.compare.bridge.hf_names import normalize_hf_name
from ckptcheck.compare.bridge.model_dimensions import ModelDimensions
from ckptcheck.compare.bridge.tensor_layout import TensorLayout
from ckptcheck.compare.matching.cast import parse_dtype
from ckptcheck.errors import EvidenceError
from ckptcheck.text.formatting import join_truncated
from ckptcheck.values.dtypes import FORMATS

if TYPE_CHECKING:
    from ckptcheck.checkpoint.config import Config
    from ckptcheck.checkpoint.source import Source
    from ckptcheck.compare.bridge.family_table import FamilyTable
    from ckptcheck.compare.matching.quantized.weight import QuantizedWeight

BUFFER = re.compile(r"(^|\.)(rotary_emb\.inv_freq|rotary_pos_emb\.inv_freq|masked_bias|position_ids)$")
"""Buffers that older releases saved beside the weights and every loader recomputes."""

MOST_DIMENSIONS = 32
"""NumPy before 2.0 supports no more dimensions; safetensors files may state any number."""


class ComparisonSide(msgspec.Struct, frozen=True):
    """A checkpoint as `diff` compares it."""

    target: str
    source: Source
    # Name → where the tensor lies; Megatron's names in their normal form.
    stored: Mapping[str, TensorLayout]
    dimensions: ModelDimensions
    config: Config | None = None
    table: FamilyTable | None = None
    # The dtype that the config names.
    declared: str | None = None
    # Whether the LM head is the embedding; None if nothing says so.
    tied: bool | None = None
    # Plain Hugging Face names of the embedding and of the LM head.
    embedding: str = "model.embed_tokens.weight"
    head: str = "lm_head.weight"
    is_megatron: bool = False
    # Name of a quantized weight → how it is stored.
    quantized: Mapping[str, QuantizedWeight] = {}
    # Names of all stored tensors that belong to quantized weights.
    quantized_parts: frozenset[str] = frozenset()
    # Name → file or folder that holds the tensor.
    files: Mapping[str, str] = {}
    # Name → why the tensor is not compared (buffers, state of the optimizer).
    left_out: Mapping[str, str] = {}
    # Name → why the tensor does not match its header.
    malformed: Mapping[str, str] = {}
    # Numbers of files, tensors and bytes.
    counts: Mapping[str, int] = {}
    # File → why it could not be read.
    unread: Mapping[str, str] = {}


def build_checkpoint_side(ckpt: Checkpoint) -> ComparisonSide:
    """Describe a Hugging Face checkpoint. Raises EvidenceError if a file of the model is missing or unreadable."""
    from ckptcheck.compare.bridge.families import find_family_table

    absent = [name for name in ckpt.model_files if name not in ckpt.shards or not ckpt.shards[name].readable]
    if absent:
        raise EvidenceError(
            f"{ckpt.target} cannot be compared: {join_truncated(absent)} is missing or cannot be read",
            hint=f"ckptcheck scan {ckpt.target} lists what is wrong",
        )
    stored, left_out, strange = {}, {}, {}
    for name, tensor in ckpt.tensors.items():
        shard = ckpt.shards[ckpt.tensor_to_file[name]]
        if BUFFER.search(name):
            left_out[name] = "a buffer that loaders recompute"
            continue
        if name in shard.unfit:
            strange[name] = shard.unfit[name]
            continue
        form, begin = FORMATS[tensor.dtype], shard.locate(name)
        itemsize = 8 if tensor.dtype == "C64" else form.bits // 8
        if form.packed:
            stored[name] = TensorLayout.contiguous(tensor.dtype, 1, (tensor.nbytes,), shard.name, begin)
        elif len(tensor.shape) > MOST_DIMENSIONS:
            strange[name] = (
                f"it has {len(tensor.shape):,} dimensions, and NumPy's arrays have at most {MOST_DIMENSIONS}"
            )
        else:
            stored[name] = TensorLayout.contiguous(tensor.dtype, itemsize, tensor.shape, shard.name, begin)
    packed: Mapping[str, QuantizedWeight] = {}
    consumed: frozenset[str] = frozenset()
    if ckpt.quantization is not None:
        from ckptcheck.compare.matching.quantized.formats import find_quantized_weights

        packed, consumed = find_quantized_weights(ckpt, stored)
    declared = ckpt.config.get("dtype", ckpt.config.get("torch_dtype")) if ckpt.config is not None else None
    return ComparisonSide(
        target=ckpt.target,
        source=ckpt.source,
        stored=stored,
        dimensions=ModelDimensions.from_config(ckpt.config),
        config=ckpt.config,
        table=find_family_table(ckpt.config),
        declared=parse_dtype(declared),
        tied=ckpt.components.is_tied,
        embedding=normalize_hf_name(ckpt.components.embedding or "model.embed_tokens.weight"),
        head=normalize_hf_name(ckpt.components.lm_head or "lm_head.weight"),
        quantized=packed,
        quantized_parts=consumed,
        files=ckpt.tensor_to_file,
        left_out=left_out,
        malformed=strange,
        counts=ckpt.counts,
        unread=ckpt.unread,
    )
