"""Finds the number of token ids for which a model has a row."""

from __future__ import annotations

from dataclasses import dataclass

from ckptcheck.checkpoint.checkpoint import Checkpoint


@dataclass(frozen=True)
class EmbeddingTable:
    """The number of token ids for which the model has a row, and the file and key that show it."""

    rows: int
    file: str
    key: str


def find_embedding_table(ckpt: Checkpoint) -> EmbeddingTable | None:
    """Return the rows of the token embedding, or `vocab_size` if that is larger or the embedding is not identified.

    CFG012 reports a difference between the two. Idefics stores the rows of added tokens in a second table.
    """
    declared = ckpt.config.integer("vocab_size") if ckpt.config is not None else None
    name = ckpt.components.embedding
    if name is not None and ckpt.tensors[name].dtype.endswith(("F16", "F32", "F64")):
        rows = ckpt.tensors[name].shape[0]
        rows += sum(
            tensor.shape[0]
            for other, tensor in ckpt.tensors.items()
            if "additional_embedding" in other and len(tensor.shape) == 2
        )
        if rows >= (declared or 0):
            return EmbeddingTable(rows, ckpt.tensor_to_file[name], name)
    return (
        EmbeddingTable(declared, "config.json", ckpt.config.key_path("vocab_size"))
        if declared and ckpt.config is not None
        else None
    )
