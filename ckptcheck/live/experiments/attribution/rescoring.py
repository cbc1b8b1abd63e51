"""Lets a side score a recorded sequence again, with tokens dropped or prepended, and aligns the scores with the tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.linter.rule import Skip
from ckptcheck.rollouts.full_vocab import FullVocabSource
from ckptcheck.rollouts.metrics.sampling_distribution import processed
from ckptcheck.rollouts.rollouts import Rollouts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

FULL = 1 << 28
"""Largest size in bytes of the full distributions that one experiment requests; it leaves out sequences beyond that."""
VOCABULARY = 1 << 18
"""The assumed vocabulary size where the rollouts do not record it."""


@dataclass(frozen=True)
class Rescoring:
    """Maps between recorded sequences and the sequences that a side scores in place of them."""

    rollouts: Rollouts
    drop: int = 0
    """How many tokens are removed from the beginning of each sequence."""
    prepend: tuple[int, ...] = ()
    """Token ids that are added before each sequence."""

    def tokens_of(self, number: int) -> list[int]:
        """Return the tokens that a side scores in place of the sequence with this number."""
        tokens: list[int] = self.rollouts.tokens[self.rollouts.sequence(number)].tolist()
        return [*self.prepend, *tokens[self.drop :]]

    def empty_scores(self) -> NDArray[Any]:
        """Return logprobs, float64 [T], all NaN."""
        import numpy as np

        return np.full(len(self.rollouts.tokens), np.nan)

    def put_scores(self, made: NDArray[Any], number: int, values: Sequence[float] | NDArray[Any]) -> None:
        """Write the scores of one sequence to the positions of its tokens.

        made: logprobs, float64 [T], of `empty_scores`. number: of the sequence. values: logprobs of all scored tokens but the
        first.
        """
        span = self.rollouts.sequence(number)
        # the index in the sequence of the token that the first value belongs to
        first_index = 1 + self.drop - len(self.prepend)
        skipped = max(0, -first_index)
        scores = values[skipped : skipped + span.stop - span.start - max(0, first_index)]
        begin = span.start + max(0, first_index)
        made[begin : begin + len(scores)] = scores

    def score_truncated(
        self, side: FullVocabSource, folder: Path, heat: float, top_p: float, top_k: int
    ) -> NDArray[Any]:
        """Request full distributions, and return logprobs of the sampling distribution (see metrics/sampling_distribution.py).

        Scores only as many sequences, from the first on, as fit into `FULL` bytes. Raises Skip if none fits.
        heat: the sampling temperature.
        """
        import numpy as np
        from safetensors.numpy import load_file

        rows = FULL // (4 * (self.rollouts.metadata.vocabulary or VOCABULARY))
        numbers, row_count = [], 0
        for number in range(self.rollouts.sequence_count):
            size = len(self.tokens_of(number))
            if size > 1 and row_count + size <= rows:
                numbers.append(number)
                row_count += size
        if not numbers:
            raise Skip("whole distributions of sequences so long do not fit")
        sequences = [self.tokens_of(number) for number in numbers]
        tables = load_file(side.score_full_vocab(sequences, folder))
        logprobs = self.empty_scores()
        for index, (number, tokens) in enumerate(zip(numbers, sequences, strict=True)):
            table = processed(np.asarray(tables[str(index)], np.float64), heat, top_p, top_k)
            self.put_scores(logprobs, number, table[np.arange(len(table)), tokens[1:]])
        return logprobs
