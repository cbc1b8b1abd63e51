"""A Megatron checkpoint, or one of torch.distributed.checkpoint, as a side of a comparison."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ckptcheck.bridge.area import Area, Chunk, packed_strides
from ckptcheck.bridge.geometry import Geometry
from ckptcheck.bridge.megatron_names import normal_name
from ckptcheck.checkpoint.megatron.reading import locate
from ckptcheck.checkpoint.megatron.tensor import GlobalTensor, width
from ckptcheck.checkpoint.torch_archive import UnreadableArchive
from ckptcheck.comparison.cast import dtype_named
from ckptcheck.comparison.side import BUFFER, Side
from ckptcheck.errors import EvidenceError

if TYPE_CHECKING:
    from ckptcheck.checkpoint.megatron.run import Megatron

WRAPPERS = re.compile(r"^(?:(?:module|model|state_dict|app|actor)\.)+(?=(?:model|lm_head|score|transformer)\.)")
"""What trainers put before the names of a Hugging Face model in torch.distributed.checkpoint."""
OWN = ("decoder.", "embedding.")
"""Beginnings by which Megatron's names are known."""


def megatron_side(run: Megatron) -> Side:
    """Describe a Megatron checkpoint. Raises EvidenceError where it holds no weights that can be read."""
    weights = run.weights
    if not weights:
        raise EvidenceError(f"{run.target} holds no weights that can be compared", hint="ckptcheck scan says more")
    is_megatron = any(name.startswith(OWN) for name in weights)
    geometry = Geometry.of_args(run.args)
    stored: dict[str, Area] = {}
    files: dict[str, str] = {}
    strange: dict[str, str] = {}
    states = run.tensors.keys() - {tensor.key for tensor in weights.values()}
    left_out = dict.fromkeys(states, "state of the optimizer or of random numbers")
    for name, tensor in weights.items():
        plain = normal_name(name, geometry.layers) if is_megatron else WRAPPERS.sub("", name)
        if BUFFER.search(plain):
            left_out[name] = "a buffer that loaders compute anew"
            continue
        try:
            stored[plain] = _area(run, tensor)
            files[plain] = next((chunk.item.file for chunk in tensor.chunks if chunk.item), "")
        except (UnreadableArchive, OSError) as error:
            strange[name] = str(error)
    untied = run.args.get("untie_embeddings_and_output_weights")
    return Side(
        target=run.target,
        source=run.source,
        stored=stored,
        geometry=geometry,
        declared=_declared(run),
        tied=not untied if isinstance(untied, bool) else None,
        is_megatron=is_megatron,
        files=files,
        left_out=left_out,
        strange=strange,
        counts=run.counts,
        unread=run.unread,
    )


def _area(run: Megatron, tensor: GlobalTensor) -> Area:
    """Return where the elements of a weight lie. Raises UnreadableArchive, OSError."""
    if not tensor.dtype:
        raise UnreadableArchive("its dtype is not known")
    itemsize = width(tensor.dtype)
    chunks = []
    for chunk in tensor.chunks:
        archive = run.archive(chunk.item) if chunk.item is not None else None
        found = locate(run.source, chunk, tensor.dtype, run.item_folder, archive)
        if found.contiguous:
            strides = packed_strides(chunk.sizes, itemsize) if chunk.sizes else ()
        elif found.shape == chunk.sizes:
            strides = tuple(step * itemsize for step in found.stride)
        else:
            raise UnreadableArchive("it is stored with gaps between its elements")
        chunks.append(Chunk(chunk.offsets, chunk.sizes, found.name, found.begin, strides))
    return Area(tensor.dtype, itemsize, tensor.shape, tuple(chunks))


def _declared(run: Megatron) -> str | None:
    """Return the dtype that the arguments name: params_dtype, or the flags bf16 and fp16."""
    for flag in ("bf16", "fp16"):
        if run.args.get(flag) is True:
            return dtype_named(flag)
    return dtype_named(run.args.get("params_dtype"))
