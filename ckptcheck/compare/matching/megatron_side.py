"""Describes a Megatron checkpoint, or one of torch.distributed.checkpoint, as a side of a comparison.

Megatron's names are brought to one normal form, that of the local layer spec:

- Transformer Engine stores a norm inside the linear layer that follows it, and numbers the weights of grouped experts.
- Layers of multi-token prediction have a list of their own; Hugging Face files number them after the other layers.
- ckptcheck/checkpoint/megatron/weights.py has already split stacked layers and experts.

Sources: megatron/core/models/gpt/gpt_layer_specs.py, transformer/moe/experts.py, multi_token_prediction.py (0.16).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.megatron.tensor import GlobalTensor, itemsize
from ckptcheck.checkpoint.megatron.tensor_reader import locate_chunk
from ckptcheck.checkpoint.torch_archive import UnreadableArchive
from ckptcheck.compare.bridge.model_dimensions import ModelDimensions
from ckptcheck.compare.bridge.tensor_layout import FileChunk, TensorLayout
from ckptcheck.compare.matching.cast import parse_dtype
from ckptcheck.compare.matching.side import BUFFER, ComparisonSide
from ckptcheck.errors import EvidenceError
from ckptcheck.values.tensor_part import packed_strides

if TYPE_CHECKING:
    from ckptcheck.checkpoint.megatron.megatron import Megatron

    LocateTensor = Callable[[Megatron, str, GlobalTensor], TensorLayout]

WRAPPERS = re.compile(r"^(?:(?:module|model|state_dict|app|actor)\.)+(?=(?:model|lm_head|score|transformer)\.)")
"""Prefixes that trainers put before the names of a Hugging Face model in torch.distributed.checkpoint."""
FUSED_NORMS = {
    ".self_attention.linear_qkv.layer_norm_": ".input_layernorm.",
    ".mlp.linear_fc1.layer_norm_": ".pre_mlp_layernorm.",
    ".self_attention.linear_q_up_proj.layer_norm_": ".self_attention.q_layernorm.",
    ".self_attention.linear_kv_up_proj.layer_norm_": ".self_attention.kv_layernorm.",
}
"""Where Transformer Engine stores a norm → the norm's own name."""
GROUPED_EXPERTS = re.compile(r"(.+\.mlp\.experts)\.(linear_fc[12])\.(weight|bias)([0-9]+)")
PREDICTION = re.compile(r"mtp\.layers\.([0-9]+)\.(?:transformer_layer\.|mtp_model_layer\.)?(.+)")
MEGATRON_PREFIXES = ("decoder.", "embedding.")
"""Prefixes that only Megatron's names have."""


def build_megatron_side(run: Megatron, locate: LocateTensor | None = None) -> ComparisonSide:
    """Describe a Megatron checkpoint.

    locate: returns where a weight lies; None: in the files of the run. Raises EvidenceError if it holds no readable
    weights.
    """
    locate = locate or _locate_tensor
    weights = run.weights
    if not weights:
        raise EvidenceError(
            f"{run.target} holds no weights that can be compared",
            hint=f"ckptcheck scan {run.target} lists what is missing",
        )
    is_megatron = any(name.startswith(MEGATRON_PREFIXES) for name in weights)
    dimensions = ModelDimensions.from_megatron_args(run.args)
    stored: dict[str, TensorLayout] = {}
    files: dict[str, str] = {}
    strange: dict[str, str] = {}
    states = run.tensors.keys() - {tensor.key for tensor in weights.values()}
    left_out = dict.fromkeys(states, "state of the optimizer or of random numbers")
    for name, tensor in weights.items():
        plain = normalize_megatron_name(name, dimensions.layers) if is_megatron else WRAPPERS.sub("", name)
        if BUFFER.search(plain):
            left_out[name] = "a buffer that loaders recompute"
            continue
        try:
            if not tensor.dtype:
                raise UnreadableArchive("its dtype is not known")
            stored[plain] = locate(run, name, tensor)
            files[plain] = next((chunk.item.file for chunk in tensor.chunks if chunk.item), "")
        except (UnreadableArchive, OSError) as error:
            strange[name] = str(error)
    untied = run.args.get("untie_embeddings_and_output_weights")
    return ComparisonSide(
        target=run.target,
        source=run.source,
        stored=stored,
        dimensions=dimensions,
        declared=_declared_dtype(run),
        tied=not untied if isinstance(untied, bool) else None,
        is_megatron=is_megatron,
        files=files,
        left_out=left_out,
        malformed=strange,
        counts=run.counts,
        unread=run.unread,
    )


def normalize_megatron_name(name: str, layers: int | None) -> str:
    """Return a weight's name in the normal form. layers: number of layers before those of multi-token prediction.

    >>> normalize_megatron_name("mtp.layers.0.transformer_layer.mlp.experts.linear_fc1.weight7", 61)
    'decoder.layers.61.mlp.experts.local_experts.7.linear_fc1.weight'
    """
    for fused, plain in FUSED_NORMS.items():
        name = name.replace(fused, plain)
    if layers is not None and (layer := PREDICTION.fullmatch(name)):
        name = f"decoder.layers.{layers + int(layer[1])}.{layer[2]}"
    if grouped := GROUPED_EXPERTS.fullmatch(name):
        name = f"{grouped[1]}.local_experts.{grouped[4]}.{grouped[2]}.{grouped[3]}"
    return name


def _locate_tensor(run: Megatron, name: str, tensor: GlobalTensor) -> TensorLayout:
    """Return where the elements of a weight lie in files. Raises UnreadableArchive, OSError."""
    element_size = itemsize(tensor.dtype)
    chunks = []
    for chunk in tensor.chunks:
        archive = run.archive(chunk.item) if chunk.item is not None else None
        location = locate_chunk(run.source, chunk, tensor.dtype, run.item_folder, archive)
        if location.contiguous:
            strides = packed_strides(chunk.sizes, element_size) if chunk.sizes else ()
        elif location.shape == chunk.sizes:
            strides = tuple(step * element_size for step in location.stride)
        else:
            raise UnreadableArchive("it is stored with gaps between its elements")
        chunks.append(FileChunk(chunk.offsets, chunk.sizes, location.name, location.begin, strides))
    return TensorLayout(tensor.dtype, element_size, tensor.shape, tuple(chunks))


def _declared_dtype(run: Megatron) -> str | None:
    """Return the dtype that Megatron's arguments name: the flags bf16 and fp16, or params_dtype."""
    for flag in ("bf16", "fp16"):
        if run.args.get(flag) is True:
            return parse_dtype(flag)
    return parse_dtype(run.args.get("params_dtype"))
