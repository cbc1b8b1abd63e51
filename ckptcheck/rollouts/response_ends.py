"""Finds out how responses end: by a token that ends them, by their length, or in a way that nothing explains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptcheck.rollouts.rollouts import Rollouts

LENGTH_WORDS = frozenset({"length", "truncated"})
ABORT_WORDS = frozenset({"abort", "aborted", "failed", "cancelled", "error", "pending"})
"""Finish reasons of engines and frameworks."""


@dataclass(frozen=True)
class PassedEnd:
    """A token that ends responses, within a response that goes on."""

    sequence: int
    position: int
    """Its place in the sequence, from 0."""
    token: int


@dataclass(frozen=True)
class ResponseEnds:
    """How the responses of some rollouts end."""

    responses: int
    """Number of responses that have tokens."""
    passed: tuple[PassedEnd, ...]
    """For each response that goes on after an end token, the first one."""
    unexplained: tuple[tuple[int, int, str], ...]
    """(sequence, last token, finish reason) of each response that ends neither by an end token nor by length nor by an abort."""

    @property
    def common_last_token(self) -> tuple[int, int] | None:
        """(token, responses) of the last token that at least two, and at least half, of the unexplained ends share."""
        tokens = Counter(token for _, token, _ in self.unexplained)
        for token, number in tokens.most_common(1):
            if number > 1 and 2 * number >= len(self.unexplained):
                return token, number
        return None


def find_response_ends(rollouts: Rollouts, stop_tokens: Collection[int]) -> ResponseEnds:
    """Look at every response. stop_tokens: ids that end one.

    A response goes on after an end token where both that token and the next one are under the response mask: between the turns
    of a conversation, tokens are not. A response of the greatest length, if two have it, ends by its length.
    """
    import numpy as np

    metadata = rollouts.metadata
    stops = np.array(sorted(stop_tokens))
    lengths = np.diff(rollouts.starts) - rollouts.prompt_lengths
    longest = int(lengths.max(initial=0))
    limit = metadata.sampling.max_tokens or (longest if int((lengths == longest).sum()) > 1 else longest + 1)
    passed: list[PassedEnd] = []
    unexplained: list[tuple[int, int, str]] = []
    responses = 0
    for block in rollouts.blocks():
        tokens, drawn = block.column("tokens"), block.response_mask & block.after_prompt
        goes_on = np.zeros(len(tokens), bool)
        goes_on[:-1] = drawn[:-1] & drawn[1:] & (block.owners[:-1] == block.owners[1:])
        ends = np.flatnonzero(np.isin(tokens, stops) & goes_on)
        firsts = ends[np.unique(block.owners[ends], return_index=True)[1]]
        passed += [
            PassedEnd(int(block.owners[place]), int(block.positions[place]), int(tokens[place]))
            for place in firsts.tolist()
        ]
        last_places = np.cumsum(block.lengths) - 1
        for sequence in range(block.first, block.last):
            length, place = int(lengths[sequence]), int(last_places[sequence - block.first])
            if not length:
                continue
            responses += 1
            reason, last = _finish_of(rollouts, sequence), int(tokens[place])
            whole = int(block.lengths[sequence - block.first])
            is_long = length >= limit or (metadata.max_model_len is not None and whole >= metadata.max_model_len - 1)
            if not (last in stop_tokens or is_long or reason in LENGTH_WORDS | ABORT_WORDS):
                unexplained.append((sequence, last, reason))
    return ResponseEnds(responses, tuple(passed), tuple(unexplained))


def _finish_of(rollouts: Rollouts, sequence: int) -> str:
    """Return the finish reason of a sequence; "" where it is not recorded."""
    finish = rollouts.columns.get("finish")
    number = -1 if finish is None else int(finish[sequence])
    return rollouts.metadata.finish_reasons[number].lower() if number >= 0 else ""
