"""What each trainer needs to know of a source before it starts: where its tensors lie."""

from __future__ import annotations

from pathlib import Path

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.errors import CkptcheckError

BUFFERS = (".rotary_emb.inv_freq", ".attention.bias", ".attn.bias", ".attn.masked_bias")
"""Tensors that old checkpoints hold and no model loads."""


def tensor_files(ckpt: Checkpoint) -> dict[str, Path]:
    """Return name → the safetensors file that holds it, for every tensor that a model loads.

    A tied head that is stored all the same is left out. Raises CkptcheckError for a source that is not on this disk,
    is quantized, or cannot be read.
    """
    folder = ckpt.source.local
    if folder is None:
        raise CkptcheckError(f"{ckpt.target} is not on this disk, and a trainer loads from there")
    broken = [name for name in ckpt.loaded if name not in ckpt.shards or not ckpt.shards[name].readable]
    if broken or not ckpt.holders:
        raise CkptcheckError(f"{broken[0] if broken else ckpt.target} cannot be read", hint="ckptcheck scan says why")
    if ckpt.config is not None and ckpt.config.get("quantization_config"):
        raise CkptcheckError(f"{ckpt.target} is quantized, and a trainer holds plain weights")
    tied = ckpt.config is not None and ckpt.config.get("tie_word_embeddings") is True
    return {
        name: folder / file
        for name, file in ckpt.holders.items()
        if not name.endswith(BUFFERS) and not (tied and name == "lm_head.weight")
    }
