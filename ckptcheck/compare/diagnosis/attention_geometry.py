"""The attention dimensions and rank counts with which the diagnosis tries layouts."""

from __future__ import annotations

from dataclasses import dataclass

from ckptcheck.checkpoint.config import HEADS, HIDDEN, Config

USUAL_TP = (2, 4, 8, 16, 32, 64)
USUAL_HEAD_DIM = (128, 64, 256, 96, 80, 32, 192, 16, 8)


@dataclass(frozen=True)
class AttentionGeometry:
    """The known dimensions of a model's attention. The diagnosis tries the usual values of a number that is None."""

    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    # Number of tensor-parallel ranks.
    tp: int | None = None

    @classmethod
    def from_config(cls, config: Config | None, *, tp: int | None = None) -> AttentionGeometry:
        """Read what a config declares; the rest is None."""
        if config is None:
            return cls(tp=tp)
        heads, hidden = config.integer(*HEADS), config.integer(*HIDDEN)
        kv_heads = config.integer("num_key_value_heads", "num_query_groups", "multi_query_group_num") or heads
        head_dim = config.integer("head_dim", "kv_channels")
        if head_dim is None and heads and hidden and heads > 0:
            head_dim = hidden // heads
        return cls(heads, kv_heads, head_dim, tp)

    def tp_sizes(self, length: int) -> list[int]:
        """Return the numbers of tensor-parallel ranks that divide `length` rows or columns, fewest first."""
        return [ranks for ranks in ((self.tp,) if self.tp else USUAL_TP) if 1 < ranks <= length and length % ranks == 0]

    def candidate_head_dims(self, rows: int) -> list[int]:
        """Return the numbers of rows that one attention head may have in a tensor of `rows` rows."""
        return [
            size
            for size in ((self.head_dim,) if self.head_dim else USUAL_HEAD_DIM)
            if 2 <= size <= rows and rows % size == 0
        ]

    def candidate_kv_heads(self, query: int, key: int) -> list[int]:
        """Return the possible numbers of KV heads, given the rows of the query and of the key."""
        if self.kv_heads:
            return [self.kv_heads] if key % self.kv_heads == 0 and query % self.kv_heads == 0 else []
        return [
            key // size
            for size in self.candidate_head_dims(key)
            if query % (key // size) == 0 and (query // (key // size)) % size == 0
        ]
