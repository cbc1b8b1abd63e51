"""The dump of one rank, and the points that ckptcheck makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class RankDump:
    """The tensors of one rank, as a reader of dumps returns them."""

    name: str
    """Its name in the report: ``rank 1``."""
    tensors: Mapping[str, Any]
    """``module`` → its output, ``module:in`` → its first input, ``module:ids`` and ``module:positions`` → its input of
    token ids and position ids."""
    tensor_parallel_size: int | None = None
    """How many ranks share the columns of a matrix, if the dump says so."""
    later_calls: int = 0
    """Further calls of the modules in the same step (micro batches, tokens of the answer), which ckptcheck does not
    read."""
    left_out: tuple[str, ...] = ()
    """Parts of the rank that are not compared: clauses for a reader."""


@dataclass
class RankPoints:
    """The points of one rank, or of one of its chunks of layers (virtual pipeline stages)."""

    name: str
    """The rank's name."""
    points: dict[str, Any]
    """Point → matrix [tokens, width]. Layers have the numbers of the dump."""
    tokens: Any = None
    """Token ids [tokens]; None where the dump has none."""
    positions: Any = None
    """Position ids [tokens], or [tokens, 3] for a model with multimodal rotary embeddings; None if the dump has
    none."""
    starts: Any = None
    """Whether a sequence begins at each token; None if the dump does not say."""
    enters: Any = None
    """The input of the first layer, [tokens, width]."""
    leaves: Any = None
    """The output of the last layer, [tokens, width]."""
    layers: frozenset[int] = frozenset()
    """The numbers of its layers in the dump."""
    chunk: int = 0
    """The number of the chunk, if the rank has several."""
    tensor_parallel_size: int | None = None
    """How many ranks share the columns of a matrix, if the dump or the config says so."""

    @property
    def begins(self) -> bool:
        """Whether it has the token embedding."""
        return "model.embed_tokens" in self.points

    @property
    def ends(self) -> bool:
        """Whether it has the final norm or the head."""
        return "model.norm" in self.points or "lm_head" in self.points


@dataclass
class Replica:
    """The ranks that compute one batch together: the points are joined over pipeline stages and tensor-parallel ranks.

    The ranks of a context-parallel group are replicas as well; each has a part of the tokens.
    """

    names: tuple[str, ...]
    """Its ranks."""
    points: dict[str, Any]
    """Point → matrix [tokens, width], in the order of execution."""
    tokens: Any = None
    """Token ids [tokens]; None where the dump has none."""
    positions: Any = None
    """As in `RankPoints`."""
    starts: Any = None
    """As in `RankPoints`."""
    copies: dict[str, list[tuple[str, Any]]] = field(default_factory=dict)
    """Point → the output of each rank of a tensor-parallel group, if all should be equal and are not."""

    @property
    def name(self) -> str:
        """``rank 3``, or ``ranks 0, 1``."""
        numbers = [name.removeprefix("rank ") for name in self.names]
        return f"ranks {', '.join(numbers)}" if len(numbers) > 1 else self.names[0]

    @property
    def rows(self) -> int:
        """How many tokens it has."""
        return (
            len(self.tokens)
            if self.tokens is not None
            else max((len(matrix) for matrix in self.points.values()), default=0)
        )
