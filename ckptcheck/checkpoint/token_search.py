"""Searches texts for many tokens at once, in time that grows with the text, not with the number of tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

LONGEST_TOKEN = 1000
"""Longest token that is searched for, in characters. Control tokens of released models have at most some 60."""


class TokenSearch:
    """Finds tokens in texts.

    The tokens are sorted. The longest token that a text begins with is the last token that does not sort after the text, or a
    prefix of that token. Each token links to its longest prefix among the tokens, and by a second, longer step (Myers 1983, *An
    applicative random-access stack*) further down that chain, so a walk takes the logarithm of its length. So each place of a text
    costs the logarithm of the number of tokens.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        """Sort the tokens, without empty ones and ones above LONGEST_TOKEN characters."""
        self._tokens = sorted({token for token in tokens if 0 < len(token) <= LONGEST_TOKEN})
        self._first_letters = frozenset(token[0] for token in self._tokens)
        self._longest = max(map(len, self._tokens), default=0)
        # number of a token → number of its longest prefix among the tokens, and of one further down the chain; -1: none
        self._parents: list[int] = []
        self._leaps: list[int] = []
        depths: list[int] = []
        chain: list[int] = []
        for number, token in enumerate(self._tokens):
            while chain and not token.startswith(self._tokens[chain[-1]]):
                chain.pop()
            parent = chain[-1] if chain else -1
            middle = self._leaps[parent] if parent >= 0 else -1
            far = self._leaps[middle] if middle >= 0 else -1
            is_far = far >= 0 and depths[parent] - depths[middle] == depths[middle] - depths[far]
            self._parents.append(parent)
            self._leaps.append(far if is_far else parent)
            depths.append(len(chain))
            chain.append(number)

    def find_contained(self, texts: Iterable[str]) -> set[str]:
        """Return the tokens that occur anywhere in one of the texts, also within or across other tokens."""
        found: set[int] = set()
        for text in texts:
            for at in self._places(text):
                number = self._find_longest(text, at)
                while number >= 0 and number not in found:
                    found.add(number)
                    number = self._parents[number]
        return {self._tokens[number] for number in found}

    def token_at(self, text: str, at: int) -> str | None:
        """Return the longest token at a place of a text."""
        number = self._find_longest(text, at) if text[at : at + 1] in self._first_letters else -1
        return self._tokens[number] if number >= 0 else None

    def _places(self, text: str) -> Iterator[int]:
        return (at for at, letter in enumerate(text) if letter in self._first_letters)

    def _find_longest(self, text: str, at: int) -> int:
        """Return the number of the longest token at a place; -1 if there is none."""
        rest = text[at : at + self._longest]
        number = bisect_right(self._tokens, rest) - 1
        while number >= 0 and not rest.startswith(self._tokens[number]):
            leap = self._leaps[number]
            fits = leap < 0 or rest.startswith(self._tokens[leap])
            number = self._parents[number] if fits else leap
        return number
