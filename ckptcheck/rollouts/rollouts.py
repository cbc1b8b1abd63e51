"""Rollouts in columns: sequences of different lengths, one after the other.

`engine_logprobs[i]` (and the trainer's, and the reference's) is the natural logarithm of the probability of token i, given the
tokens of its sequence before it. The first token of a sequence has none, so nothing ever compares it. Under the response mask
every logprob has to be there; elsewhere it is 0 where nothing was scored. There is no NaN for "missing": what no sequence
has is a column that is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.document import Defect
from ckptcheck.rollouts.metadata import Metadata

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BLOCK = 1 << 16
"""Tokens that are worked on at a time: half a megabyte for every number kept of each, so that they stay in the cache."""


@dataclass(frozen=True)
class Rollouts:
    """columns: name → array, as in columns.py; a file's are mapped, not read. defects: what is wrong with the form.

    While there is a defect, only the metadata may be relied on. name: of the file.
    """

    metadata: Metadata = field(default_factory=Metadata)
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)
    defects: tuple[Defect, ...] = ()
    name: str = ""

    @property
    def starts(self) -> NDArray[np.int64]:
        """int64 [N + 1]: where each sequence begins, and the end of the last."""
        return self.columns["starts"]

    @property
    def tokens(self) -> NDArray[np.int32]:
        """int32 [T]."""
        return self.columns["tokens"]

    @property
    def prompts(self) -> NDArray[np.integer[Any]]:
        """Int [N]: tokens of each prompt."""
        return self.columns["prompt_lengths"]

    @property
    def number(self) -> int:
        """Sequences."""
        return max(0, len(self.starts) - 1)

    def __contains__(self, column: str) -> bool:
        return column in self.columns

    def blocks(self, size: int = BLOCK) -> Iterator[Block]:
        """Give whole sequences, about `size` tokens at a time; a longer one comes alone."""
        import numpy as np

        starts, first = self.starts, 0
        while first < self.number:
            last = int(np.searchsorted(starts, int(starts[first]) + size, "right")) - 1
            last = max(last, first + 1)
            yield Block(self, first, last)
            first = last

    def sequence(self, number: int) -> slice:
        """Where the tokens of one sequence lie."""
        return slice(int(self.starts[number]), int(self.starts[number + 1]))

    def with_columns(self, metadata: Metadata | None = None, **columns: NDArray[Any]) -> Rollouts:
        """Return the same rollouts with columns added or replaced. The form is checked when they are written and read."""
        return replace(self, metadata=metadata or self.metadata, columns={**self.columns, **columns})


@dataclass(frozen=True)
class Block:
    """Sequences [first, last) of some rollouts."""

    rollouts: Rollouts = field(repr=False)
    first: int
    last: int

    @cached_property
    def where(self) -> slice:
        """Where its tokens lie."""
        return slice(int(self.rollouts.starts[self.first]), int(self.rollouts.starts[self.last]))

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """int64 [sequences]: tokens of each."""
        import numpy as np

        return np.asarray(np.diff(self.rollouts.starts[self.first : self.last + 1]))

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """int64 [tokens]: the place of each token in its sequence, from 0."""
        import numpy as np

        begins = np.repeat(self.rollouts.starts[self.first : self.last] - self.where.start, self.lengths)
        return np.asarray(np.arange(self.where.stop - self.where.start) - begins)

    @cached_property
    def owners(self) -> NDArray[np.int64]:
        """int64 [tokens]: the sequence of each token, counted over all rollouts."""
        import numpy as np

        return np.repeat(np.arange(self.first, self.last), self.lengths)

    @cached_property
    def after_prompt(self) -> NDArray[np.bool_]:
        """Bool [tokens]: which come after their prompt."""
        return self.positions >= self.rollouts.prompts[self.owners]

    @cached_property
    def asked(self) -> NDArray[np.bool_]:
        """Bool [tokens]: the response mask as given; every token after the prompt where there is none."""
        if "response_mask" in self.rollouts:
            mask: NDArray[np.bool_] = self.rollouts.columns["response_mask"][self.where] != 0
            return mask
        return self.after_prompt

    @cached_property
    def mask(self) -> NDArray[np.bool_]:
        """Bool [tokens]: which are compared: those under the response mask that have a token before them."""
        found = self.asked.copy()
        begins = self.rollouts.starts[self.first : self.last] - self.where.start
        found[begins[begins < len(found)]] = False  # of the empty sequences the last ones begin at the end
        return found

    def column(self, name: str) -> NDArray[Any]:
        """Return the block's part of a column of tokens."""
        return self.rollouts.columns[name][self.where]
