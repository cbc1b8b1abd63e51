"""Measures whether responses are coherent: loops, one token repeated, text that is none, how likely the text is.

Broken weights in an engine show as one token over and over (NaN makes it the first of the vocabulary), as short loops, as tokens
that are hardly likelier than a guess, or as text that the broken model itself finds likely: marks with hardly a word between
(wrong layers), pieces of rare words put together (exchanged shards, halves, matrices), stutter (norms), control characters (rows of
the embedding).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
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
LEAST_MARKS, WORDLESS = 6, 0.4
"""Fewest marks of a text that is judged by them, and the share of them that follow another one."""
LETTERS = re.compile(r"[A-Za-z\u00c0-\u024f]+")
"""A row of Latin letters: a word, in scripts with spaces."""
LEAST_WORDS, RARE, LONG = 8, 0.2, 8.0
"""Fewest words of a text that is judged by them; the place in the vocabulary from which on the median token is rare (tokenizers
list frequent tokens first), and from which mean length on words are several put together. Languages that a tokenizer learnt last
have their tokens far behind, and names of functions are long, so that neither alone is a sign."""
LEAST_LATIN, COMMONEST, COMMON = 12, 1_000, 0.15
"""Fewest tokens with Latin letters of a text that is judged by them; the tokens that every tokenizer lists first, letters, ends of
words, `of` and `in`; and the share of others that a text has at least. A minified program has fewer, and no language."""
STUTTERED = re.compile(r"[A-Za-z\u00c0-\u024f,.;:!?]")
STUTTER, BLANK_STUTTER = 0.1, 0.2
"""The share of tokens, with letters or marks, that repeat the one before, and of blanks. Digits and rules of tables do in sound
text, and so do blanks, seldom."""
CONTROL = re.compile(r"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]")
"""Control characters but blanks, and escape, which colours what terminals print."""
NONSENSE: Mapping[str, str] = {
    "marks": "marks without words",
    "pieces": "pieces of rare words put together",
    "common": "hardly a word but the commonest",
    "control": "control characters",
    "stutter": "tokens that repeat the one before",
}
"""What shows that a text is none → how a message says it. Of 20,256 pieces of 300 characters of real text (15 languages, five
programming languages, JSON, manuals), tokenized as SmolLM2 and Llama 3 do, 24 are taken for pieces of words, 8 hold control
characters and 6 stutter; of 24,000, 6 are marks without words; of 9,850 (16 languages, five kinds of programs), 9 have hardly a
word but the commonest, and none repeats blanks."""
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


def measure_nonsense(
    rollouts: Rollouts, decode: Callable[[Sequence[int]], str], vocabulary: int | None
) -> dict[int, str | None]:
    """Return sequence → what shows that its response is no text, a key of `NONSENSE`; None for nothing.

    Only for responses of at least `LEAST` tokens under the mask. vocabulary: how many tokens there are; None if that is not known.
    """
    masks = rollouts.columns.get("response_mask")

    @cache
    def read(token: int) -> str:
        return decode([token])

    found = {}
    for sequence in range(rollouts.sequence_count):
        inside, prompt = rollouts.sequence(sequence), int(rollouts.prompt_lengths[sequence])
        response = rollouts.tokens[inside][prompt:]
        if masks is not None:
            response = response[masks[inside][prompt:].astype(bool)]
        if len(response) >= LEAST:
            tokens = [token for token in response[:JUDGED_TOKENS].tolist() if token >= 0]
            found[sequence] = find_nonsense(decode(tokens), tokens, read, vocabulary)
    return found


def find_nonsense(text: str, tokens: Sequence[int], read: Callable[[int], str], vocabulary: int | None) -> str | None:
    """Return what shows that a text is none, a key of `NONSENSE`; None for nothing. read: token → its text."""
    if find_wordless_marks(text) >= WORDLESS:
        return "marks"
    words = LETTERS.findall(text)
    latin = sorted(token for token in tokens if LETTERS.search(read(token)))
    is_long = len(words) >= LEAST_WORDS and sum(map(len, words)) >= LONG * len(words)
    if vocabulary and is_long and latin and latin[len(latin) // 2] >= RARE * vocabulary:
        return "pieces"
    if CONTROL.search(text):
        return "control"
    twice = [read(one) for one, other in pairwise(tokens) if one == other]
    for limit, number in (
        (STUTTER, sum(STUTTERED.search(each) is not None for each in twice)),
        (BLANK_STUTTER, sum(not each.strip() for each in twice)),
    ):
        if number and number >= limit * len(tokens):
            return "stutter"
    if (vocabulary or 0) < SMALLEST_VOCABULARY or len(latin) < LEAST_LATIN:
        return None
    return "common" if sum(token >= COMMONEST for token in latin) < COMMON * len(latin) else None


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
