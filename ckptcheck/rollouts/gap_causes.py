"""Finds the tokens whose gap has a cause that the file shows, so that only the others are held to limits.

Each cause is found among the tokens that the causes before it leave: a mask over prompts, placeholders, shifts, and what far tokens
have in common.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ckptcheck.rollouts.far_tokens import FAR, PlaceholderRuns, find_far_tokens, find_placeholder_runs
from ckptcheck.rollouts.mask_reading import MaskFault, MaskReading, find_mask_fault
from ckptcheck.rollouts.metrics.logprob_metrics import LogprobMetrics, compute_metrics
from ckptcheck.rollouts.metrics.shift import LackingLists, ShiftSearch, find_lacking_lists, find_shifts
from ckptcheck.rollouts.outlier_traits import HIT, CommonTrait, Places, find_token_trait, list_turns

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ckptcheck.rollouts.rollouts import Rollouts
    from ckptcheck.rollouts.thresholds import Thresholds

LEAST_OF_SEQUENCE = 16
"""Fewest compared tokens of a sequence that is judged by itself."""
SMALL_OUTLIER, OUTLIER_FACTOR = 0.05, 20.0
"""A sequence is an outlier if its mean |Δ| is above so many nats and so many times that of the median sequence."""
NEARLY_ALL = 0.9
GREEDY = 0.1
"""Temperature below which an engine's processed logprob is 0 for every token that it draws."""


@dataclass(frozen=True)
class OutlierSequences:
    """Sequences whose gap is far larger than that of the others."""

    bad: NDArray[np.int64]
    """Their numbers, ascending; empty where there is none."""
    judged: NDArray[np.int64]
    """The numbers of all sequences with tokens enough."""
    gap: LogprobMetrics = field(repr=False)
    median: float
    """Mean |Δ| of the median sequence, in nats."""

    @property
    def are_few(self) -> bool:
        """Whether less than half of the sequences are outliers, so that they are the cause of the file's gap."""
        return 2 * len(self.bad) < len(self.judged)


@dataclass(frozen=True)
class GapCauses:
    """The causes of a gap between the logprobs of two sides, of which some are finite."""

    rollouts: Rollouts = field(repr=False)
    gap: LogprobMetrics
    """Of all compared tokens."""
    limits: Thresholds
    mask_reading: MaskReading | None = None
    """What the recorded response mask covers and leaves out; None where none is recorded."""
    _answers: list[tuple[NDArray[np.bool_], LogprobMetrics | None]] = field(default_factory=list, repr=False)

    @property
    def is_large(self) -> bool:
        """Whether the gap of all tokens is beyond a limit."""
        return self.gap.mult_prob_error > self.limits.mult_prob_error or self.gap.k3 > self.limits.kl

    @cached_property
    def far(self) -> NDArray[np.int64]:
        """Indices of the compared tokens whose two logprobs are far apart, ascending."""
        import numpy as np

        return find_far_tokens(self.rollouts) if self.gap.abs_max > FAR else np.zeros(0, np.int64)

    @cached_property
    def lacking_lists(self) -> LackingLists | None:
        """Sequences whose engine's logprobs leave out the tokens outside of the response mask, where nearly all with a gap do."""
        found = find_lacking_lists(self.rollouts, self.gap.sequence_abs)
        return found if found is not None and len(found.sequences) >= NEARLY_ALL * found.tried else None

    @cached_property
    def placeholder_runs(self) -> tuple[PlaceholderRuns, ...]:
        """Stretches of tokens behind their prompts that hold no logprob of a side, the engine's first."""
        if self.lacking_lists is not None:
            return ()  # the ends of such lists
        far = self.far
        if self.mask_reading is not None and len(self.mask_reading.prompt_tokens):
            far = far[~self._mark(self.mask_reading.prompt_tokens)[far]]
        sampling = self.rollouts.metadata.sampling
        is_greedy = sampling.top_k == 1 or (sampling.temperature is not None and sampling.temperature < GREEDY)
        sides = ("trainer",) if is_greedy else ("engine", "trainer")
        found: list[PlaceholderRuns] = []
        for side in sides:
            if (runs := find_placeholder_runs(self.rollouts, side, far)) is not None:
                found.append(runs)
                # where both sides hold placeholders, the engine's come first
                far = far[~self._mark(runs.indices)[far]]
        return tuple(found)

    @cached_property
    def undrawn(self) -> NDArray[np.int64]:
        """Indices of the compared tokens that no sampling stands behind: prompts under the mask, and placeholders; ascending."""
        import numpy as np

        parts = [runs.indices for runs in self.placeholder_runs]
        if self.mask_reading is not None:
            parts.append(self.mask_reading.prompt_tokens)
        return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)

    @cached_property
    def shifts(self) -> ShiftSearch:
        """The sequences whose logprobs agree better where one side is shifted."""
        gaps, known = self.gap.sequence_abs, None
        if (lacking := self.lacking_lists) is not None:
            return ShiftSearch(lacking.sequences, lacking.tried, ())
        if len(self.undrawn):
            known, left = self._mark(self.undrawn), self.measure_without(self.undrawn)
            gaps = gaps if left is None else left.sequence_abs
        return find_shifts(self.rollouts, gaps, known)

    @cached_property
    def mask_fault(self) -> MaskFault | None:
        """How the mask as a whole lies wrong; None where logprobs are shifted, which moves them against the mask as well."""
        if self.mask_reading is None or self.shifts.shifts or self.lacking_lists is not None:
            return None
        return find_mask_fault(self.rollouts, self.mask_reading, self.undrawn)

    @cached_property
    def _known(self) -> NDArray[np.bool_]:
        """Bool [tokens]: whether a token has a cause other than a trait."""
        import numpy as np

        known = self._mark(self.undrawn)
        if self.shifts.shifts or self.lacking_lists is not None:
            # the other sequences with a gap may be shifted by several numbers, or be too short to tell
            known |= self._mark_sequences(np.searchsorted(self.rollouts.starts, self.far, "right") - 1)
            known |= self._mark_sequences(self.shifts.suspicious)
        return known

    @cached_property
    def trait(self) -> CommonTrait | None:
        """What nearly all far tokens without another cause have in common, and few others."""
        if self.shifts.shifts or self.lacking_lists is not None:
            return None
        found = find_token_trait(self.rollouts, self.far[~self._known[self.far]], self._list_compared)
        return found if found is not None and (self.is_large or found.hit >= HIT) else None

    @cached_property
    def gap_of_sequences(self) -> LogprobMetrics | None:
        """The gap of the tokens without a cause of their own; None where every token has one."""
        return self._measure(self._of_tokens)

    @cached_property
    def _of_tokens(self) -> NDArray[np.bool_]:
        """Bool [tokens]: whether a token has a known cause that is not its sequence."""
        if (trait := self.trait) is None:
            return self._known
        known, turns = self._known.copy(), list_turns(self.rollouts)
        for indices in self._list_compared():
            known[indices[trait.trait.test(Places(self.rollouts, indices, turns))]] = True
        return known

    @cached_property
    def outliers(self) -> OutlierSequences | None:
        """The sequences that are outliers, where the others agree; None where no sequence has tokens enough."""
        import numpy as np

        gap = self.gap_of_sequences
        judged = np.flatnonzero(gap.sequence_tokens >= LEAST_OF_SEQUENCE) if gap is not None else np.zeros(0, np.int64)
        if gap is None or not len(judged):
            return None
        error, abs_diff = gap.sequence_error[judged], gap.sequence_abs[judged]
        median = statistics.median(abs_diff.tolist())
        bad = judged[
            (error > self.limits.sequence) | ((abs_diff > SMALL_OUTLIER) & (abs_diff > OUTLIER_FACTOR * median))
        ]
        return OutlierSequences(bad, judged, gap, median)

    @cached_property
    def remaining(self) -> LogprobMetrics | None:
        """The gap of the tokens without a known cause; None where every token has one."""
        outliers = self.outliers
        if outliers is None or not len(outliers.bad) or not outliers.are_few:
            return self.gap_of_sequences
        return self._measure(self._of_tokens | self._mark_sequences(outliers.bad))

    @property
    def known_tokens(self) -> int:
        """Number of tokens whose gap has a known cause."""
        return self.gap.tokens - (0 if self.remaining is None else self.remaining.tokens)

    def _list_compared(self) -> Iterator[NDArray[np.int64]]:
        """Yield the indices of the compared tokens without a cause other than a trait."""
        import numpy as np

        for block in self.rollouts.blocks():
            mask = block.mask & ~self._known[block.token_slice]
            yield np.flatnonzero(mask) + block.token_slice.start

    def _mark_sequences(self, sequences: Sequence[int] | NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return bool [tokens]: whether a token is of these sequences. sequences: their numbers."""
        import numpy as np

        chosen = np.zeros(self.rollouts.sequence_count, bool)
        chosen[np.asarray(sequences, np.int64)] = True
        return np.repeat(chosen, np.diff(self.rollouts.starts))

    def _mark(self, indices: NDArray[np.int64]) -> NDArray[np.bool_]:
        import numpy as np

        marked = np.zeros(len(self.rollouts.tokens), bool)
        marked[indices] = True
        return marked

    def measure_without(self, indices: NDArray[np.int64]) -> LogprobMetrics | None:
        """Return the gap of the compared tokens without some of them; None where none is left."""
        return self._measure(self._mark(indices))

    def _measure(self, known: NDArray[np.bool_]) -> LogprobMetrics | None:
        """Return the gap without the known tokens. Causes often leave the same tokens, so the last two answers are kept."""
        import numpy as np

        if not known.any():
            return self.gap
        for earlier, answer in self._answers:
            if np.array_equal(earlier, known):
                return answer
        mask = np.concatenate([block.response_mask for block in self.rollouts.blocks()]) & ~known
        answer = compute_metrics(self.rollouts.with_columns(response_mask=mask), clip=self.gap.clip)
        self._answers[:] = [*self._answers[-1:], (known, answer)]
        return answer
