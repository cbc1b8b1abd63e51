"""One side of a comparison: its tensors as areas, and what it says about itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

from ckptcheck.bridge.area import Area
from ckptcheck.bridge.geometry import Geometry
from ckptcheck.bridge.hf_names import renamed
from ckptcheck.comparison.cast import dtype_named
from ckptcheck.errors import EvidenceError
from ckptcheck.phrase import few
from ckptcheck.values.dtypes import FORMATS

if TYPE_CHECKING:
    from ckptcheck.bridge.table import Table
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.config import Config
    from ckptcheck.comparison.packed import Packed
    from ckptcheck.comparison.reading import Readable

BUFFER = re.compile(r"(^|\.)(rotary_emb\.inv_freq|rotary_pos_emb\.inv_freq|masked_bias|position_ids)$")
"""What older releases saved beside the weights, and every loader computes anew."""


@dataclass(frozen=True)
class Side:
    """A checkpoint as `diff` sees it.

    stored: name → tensor; names of Megatron in their normal form. packed: name of a weight → how it is quantized, of the
    modules that are. consumed: names of tensors that belong to those. left_out: name → why it is not compared (buffers,
    optimizer). strange: name → why the tensor is not what its header says. declared: the dtype that its config names.
    tied: whether head and embedding are one, None where it is not said. embedding, head: their plain names.
    """

    target: str
    source: Readable
    stored: Mapping[str, Area] = field(repr=False)
    geometry: Geometry
    config: Config | None = None
    table: Table | None = None
    declared: str | None = None
    tied: bool | None = None
    embedding: str = "model.embed_tokens.weight"
    head: str = "lm_head.weight"
    is_megatron: bool = False
    packed: Mapping[str, Packed] = field(default_factory=dict, repr=False)
    consumed: frozenset[str] = frozenset()
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    left_out: Mapping[str, str] = field(default_factory=dict, repr=False)
    strange: Mapping[str, str] = field(default_factory=dict, repr=False)
    counts: Mapping[str, int] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)


def side_of(ckpt: Checkpoint) -> Side:
    """Describe a Hugging Face checkpoint. Raises EvidenceError where a file of the model is missing or cannot be read."""
    from ckptcheck.bridge.families import table_of
    from ckptcheck.comparison.quantized import packed_of

    absent = [name for name in ckpt.loaded if name not in ckpt.shards or not ckpt.shards[name].readable]
    if absent:
        raise EvidenceError(
            f"{ckpt.target} cannot be compared: {few(absent)} is missing or cannot be read",
            hint="ckptcheck scan says more",
        )
    stored, left_out, strange = {}, {}, {}
    for name, tensor in ckpt.tensors.items():
        shard = ckpt.shards[ckpt.holders[name]]
        if BUFFER.search(name):
            left_out[name] = "a buffer that loaders compute anew"
            continue
        form = FORMATS.get(tensor.dtype)
        begin = shard.data_start + tensor.data_offsets[0]
        elements = prod(tensor.shape)
        itemsize = 8 if tensor.dtype == "C64" else form.bits // 8 if form is not None else 0
        if form is None or tensor.nbytes < 0 or shard.data_start + tensor.data_offsets[1] > shard.size:
            strange[name] = (
                f"its dtype {tensor.dtype} is not known" if form is None else "it does not lie within its file"
            )
        elif form.packed:
            stored[name] = Area.whole(tensor.dtype, 1, (tensor.nbytes,), shard.name, begin)
        elif elements * itemsize != tensor.nbytes:
            strange[name] = "its bytes do not fit its shape"
        else:
            stored[name] = Area.whole(tensor.dtype, itemsize, tensor.shape, shard.name, begin)
    packed, consumed = packed_of(ckpt, stored)
    declared = ckpt.config.get("dtype", ckpt.config.get("torch_dtype")) if ckpt.config is not None else None
    return Side(
        target=ckpt.target,
        source=ckpt.source,
        stored=stored,
        geometry=Geometry.of_config(ckpt.config),
        config=ckpt.config,
        table=table_of(ckpt.config),
        declared=dtype_named(declared),
        tied=ckpt.anatomy.tied,
        embedding=renamed(ckpt.anatomy.embedding or "model.embed_tokens.weight"),
        head=renamed(ckpt.anatomy.head or "lm_head.weight"),
        packed=packed,
        consumed=consumed,
        files=ckpt.holders,
        left_out=left_out,
        strange=strange,
        counts=ckpt.counts,
        unread=ckpt.unread,
    )
