"""Measures whether responses are coherent: loops, one token repeated, punctuation without words, how likely the text is.

Broken weights in an engine show as one token over and over (NaN makes it the first of the vocabulary), as short loops, or as text
whose tokens are hardly likelier than a guess. Wrong layers show as punctuation with hardly a word between, which the broken model
itself finds likely.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ckptcheck.rollouts.rollouts import Rollouts

LEAST = 16
"""Fewest tokens of a response that is judged; shorter ones repeat themselves by chance."""
LONGEST_LOOP = 64
"""Most tokens of one round of a loop."""
ROUNDS = 4
"""Fewest rounds that make a loop."""
MARK = re.compile(r"([,.;:!?])\1*")
"""A mark of a sentence; the same one several times, as in an ellipsis, is one."""
LEAST_MARKS = 6
"""Fewest marks of a text that is judged by them."""
JUDGED_TOKENS = 512
"""Most tokens of a response whose text is read."""
SMALLEST_VOCABULARY = 32_000
"""Models with fewer tokens are toys, often never trained, and a guess of theirs is not far from a good answer."""


@dataclass(frozen=True)
class ResponseShape:
    """How the tokens of one response repeat themselves."""

    sequence: int
    tokens: int
    token: int
    """The most frequent token."""
    token_share: float
    """Its share of the response."""
    period: int
    """Tokens of one round of the loop at the end of the response; 0: there is none."""
    loop_share: float
    """Share of the response that is this loop."""


def measure_responses(rollouts: Rollouts) -> tuple[ResponseShape, ...]:
    """Return how each response of at least `LEAST` tokens repeats itself."""
    import numpy as np

    shapes = []
    for block in rollouts.blocks():
        tokens, mask = block.column("tokens"), block.response_mask & block.after_prompt
        starts = (rollouts.starts[block.first : block.last + 1] - block.token_slice.start).tolist()
        for sequence, begin, end in zip(range(block.first, block.last), starts, starts[1:], strict=False):
            response = tokens[begin:end][mask[begin:end]]
            if len(response) < LEAST:
                continue
            # np.unique does the same, and takes three times as long for a response of usual length.
            ordered = np.sort(response)
            begins = np.concatenate([[0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1])
            numbers = np.diff(begins, append=len(ordered))
            most = int(numbers.argmax())
            period, length = _find_loop(response)
            shapes.append(
                ResponseShape(
                    sequence,
                    len(response),
                    int(ordered[begins[most]]),
                    float(numbers[most] / len(response)),
                    period,
                    length / len(response),
                )
            )
    return tuple(shapes)


def _find_loop(response: NDArray[Any]) -> tuple[int, int]:
    """Return the period and the length of the loop with which a response ends; (0, 0) for none."""
    import numpy as np

    best = (0, 0)
    most = min(LONGEST_LOOP, len(response) // ROUNDS)
    # The last token repeats in every loop, so most periods need no search.
    periods = np.flatnonzero(response[-2 : -2 - most : -1] == response[-1]) + 1 if most else ()
    for period in map(int, periods):
        other = np.flatnonzero(response[period:] != response[:-period])
        equal = len(response) - period - (int(other[-1]) + 1 if len(other) else 0)
        length = equal + period
        if equal >= (ROUNDS - 1) * period and length > best[1]:
            best = (period, length)
    return best


def measure_wordless_marks(rollouts: Rollouts, decode: Callable[[Sequence[int]], str]) -> dict[int, float]:
    """Return sequence → share of the marks in its response that follow another mark, with nothing but spaces between.

    Only for responses of at least `LEAST` tokens. The share of a text with fewer than LEAST_MARKS marks is 0.
    """
    shares = {}
    for sequence in range(rollouts.sequence_count):
        response = rollouts.tokens[rollouts.sequence(sequence)][int(rollouts.prompt_lengths[sequence]) :]
        if len(response) >= LEAST:
            shares[sequence] = find_wordless_marks(
                decode([token for token in response[:JUDGED_TOKENS].tolist() if token >= 0])
            )
    return shares


def find_wordless_marks(text: str) -> float:
    """Return the share of a text's marks that follow another mark, with nothing but spaces between; 0 with too few marks.

    >>> find_wordless_marks(" division,  .,  , and ..,  ,  and..,"), find_wordless_marks("2, 3, 5, 7, 11, 13, 17, 19, 23.")
    (0.6666666666666666, 0.0)
    """
    marks = list(MARK.finditer(text))
    if len(marks) < LEAST_MARKS:
        return 0.0
    following = sum(not text[one.end() : other.start()].strip() for one, other in pairwise(marks))
    return following / len(marks)


def guess_logprob(vocabulary: int | None) -> float | None:
    """Return the logprob of every token in a guess among the whole vocabulary: -ln of its size.

    None for a smaller vocabulary than language models have. An unknown one counts as the smallest of these.
    """
    if vocabulary is not None and vocabulary < SMALLEST_VOCABULARY:
        return None
    return -log(vocabulary or SMALLEST_VOCABULARY)


def mean_logprob(rollouts: Rollouts, column: str) -> float | None:
    """Return the mean of a column's finite logprobs under the response mask; None where there is none."""
    import numpy as np

    total, number = 0.0, 0
    for block in rollouts.blocks():
        values = block.column(column)[block.mask].astype(np.float64)
        values = values[np.isfinite(values)]
        total, number = total + float(values.sum()), number + len(values)
    return total / number if number else None
