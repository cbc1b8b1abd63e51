"""Rollouts in columns: sequences of different lengths, one after the other.

`engine_logprobs[i]` (and the trainer's, and the reference's) is the natural logarithm of the probability of token i, given the
tokens of its sequence before it. The first token of a sequence has no logprob, so it is never compared. Under the response mask
every token needs a logprob; elsewhere the value is 0 where nothing was scored. NaN does not mean "missing": a number that no
sequence has is a column that is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from ckptcheck.checkpoint.document import Defect
from ckptcheck.rollouts.metadata import Metadata

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BLOCK = 1 << 16
"""Tokens that are processed at a time: a float64 of each takes half a megabyte, so that arrays stay in the CPU's cache."""


@dataclass(frozen=True)
class Rollouts:
    """Sequences with their logprobs, in columns, and the metadata. Where there is a defect, only the metadata is reliable."""

    metadata: Metadata = field(default_factory=Metadata)
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)
    """Name → array, as columns.py describes them; those of a long file are memory-mapped."""
    defects: tuple[Defect, ...] = ()
    """What is wrong with the form of the columns."""
    name: str = ""
    """Name of the file."""
    unknown: tuple[str, ...] = ()
    """Columns of the file that are not read: of a later version of the format, or the user's own."""

    @property
    def starts(self) -> NDArray[np.int64]:
        """int64 [N + 1]: the index of each sequence's first token, and the end of the last sequence."""
        return self.columns["starts"]

    @property
    def tokens(self) -> NDArray[np.int32]:
        """int32 [T]: token ids."""
        return self.columns["tokens"]

    @property
    def prompt_lengths(self) -> NDArray[np.integer[Any]]:
        """Int [N]: number of tokens of each prompt."""
        return self.columns["prompt_lengths"]

    @property
    def sequence_count(self) -> int:
        """Number of sequences."""
        return max(0, len(self.starts) - 1)

    @cached_property
    def holds_prompts_only(self) -> bool:
        """Whether no sequence has a response, and both sides computed logprobs of the prompts.

        So a job records them that leaves the responses out to compare prefill with training (PROMPTS_ONLY of verl and msProbe).
        """
        import numpy as np

        if not self.sequence_count or not {"engine_logprobs", "trainer_logprobs"} <= self.columns.keys():
            return False
        if not np.array_equal(np.diff(self.starts), self.prompt_lengths):
            return False
        # Where nothing was scored, a logprob is 0 or not finite.
        values = (self.columns["engine_logprobs"], self.columns["trainer_logprobs"])
        scored = [np.isfinite(logprobs) & (logprobs != 0) for logprobs in values]
        return bool((scored[0] & scored[1]).any())

    def __contains__(self, column: str) -> bool:
        return column in self.columns

    def blocks(self, size: int = BLOCK) -> Iterator[Block]:
        """Yield blocks of whole sequences with at most `size` tokens; a longer sequence is a block of its own."""
        import numpy as np

        starts, first = self.starts, 0
        while first < self.sequence_count:
            last = int(np.searchsorted(starts, int(starts[first]) + size, "right")) - 1
            last = max(last, first + 1)
            yield Block(self, first, last)
            first = last

    def sequence(self, number: int) -> slice:
        """The slice of one sequence's tokens. number: of the sequence, from 0."""
        return slice(int(self.starts[number]), int(self.starts[number + 1]))

    def with_columns(self, metadata: Metadata | None = None, **columns: NDArray[Any]) -> Rollouts:
        """Return the same rollouts with columns added or replaced. Their form is checked only when they are written or read."""
        return replace(self, metadata=metadata or self.metadata, columns={**self.columns, **columns})


class Runs(NamedTuple):
    """Tokens of a block that follow each other, and belong together; none is empty. All are int64 [runs]."""

    begins: NDArray[np.int64]
    """The first token, as its place among the tokens that were split."""
    counts: NDArray[np.int64]
    """Number of tokens."""
    sequences: NDArray[np.int64]
    """Number of the sequence, counted from the first of the block."""
    bins: NDArray[np.int64]
    """Number of the bin of places."""


@dataclass(frozen=True)
class Block:
    """Sequences [first, last) of some rollouts."""

    rollouts: Rollouts = field(repr=False)
    first: int
    last: int

    @cached_property
    def token_slice(self) -> slice:
        """The slice of its tokens."""
        return slice(int(self.rollouts.starts[self.first]), int(self.rollouts.starts[self.last]))

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """int64 [sequences]: number of tokens of each sequence."""
        import numpy as np

        return np.asarray(np.diff(self.rollouts.starts[self.first : self.last + 1]))

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """int64 [tokens]: position of each token in its sequence, from 0."""
        import numpy as np

        begins = np.repeat(self.rollouts.starts[self.first : self.last] - self.token_slice.start, self.lengths)
        return np.asarray(np.arange(self.token_slice.stop - self.token_slice.start) - begins)

    @cached_property
    def owners(self) -> NDArray[np.int64]:
        """int64 [tokens]: number of each token's sequence, counted over all rollouts."""
        import numpy as np

        return np.repeat(np.arange(self.first, self.last), self.lengths)

    def split(self, indices: NDArray[Any], edges: Sequence[int] = (0,)) -> Runs:
        """Split tokens of the block into runs of one sequence whose places in the response lie between the same two edges.

        indices: int [k]: of the tokens, ascending. edges: the first place of each bin, from 0 on, ascending. What stands in the
        prompt counts as place 0. It looks up the edges and not the tokens, because there are far fewer.
        """
        import numpy as np

        starts = self.rollouts.starts[self.first : self.last + 1] - self.token_slice.start
        prompts = self.rollouts.prompt_lengths[self.first : self.last].astype(np.int64)
        bounds = np.minimum((starts[:-1] + prompts)[:, None] + np.asarray(edges), starts[1:, None])
        bounds[:, 0] = starts[:-1]
        begins = np.searchsorted(indices, bounds.ravel())
        counts = np.diff(begins, append=len(indices))
        filled = np.flatnonzero(counts)
        sequences, bins = np.divmod(filled, len(edges))
        return Runs(begins[filled], counts[filled], sequences, bins)

    @cached_property
    def after_prompt(self) -> NDArray[np.bool_]:
        """Bool [tokens]: whether a token comes after its prompt."""
        import numpy as np

        prompts = np.clip(self.rollouts.prompt_lengths[self.first : self.last], 0, self.lengths)
        return np.repeat(
            np.tile(np.array([False, True]), len(prompts)), np.stack([prompts, self.lengths - prompts], 1).ravel()
        )

    @cached_property
    def response_mask(self) -> NDArray[np.bool_]:
        """Bool [tokens]: the recorded response mask; without one, every token after the prompt; of prompts alone, every token."""
        if self.rollouts.holds_prompts_only:
            import numpy as np

            return np.ones(len(self.owners), bool)
        if "response_mask" in self.rollouts:
            mask: NDArray[np.bool_] = self.rollouts.columns["response_mask"][self.token_slice] != 0
            return mask
        return self.after_prompt

    @cached_property
    def mask(self) -> NDArray[np.bool_]:
        """Bool [tokens]: whether a token is compared: it is under the response mask and is not the first of its sequence."""
        compared = self.response_mask.copy()
        begins = self.rollouts.starts[self.first : self.last] - self.token_slice.start
        # empty sequences at the end of the block begin behind its last token
        compared[begins[begins < len(compared)]] = False
        return compared

    def column(self, name: str) -> NDArray[Any]:
        """Return the block's part of a column whose axis is tokens."""
        return self.rollouts.columns[name][self.token_slice]
