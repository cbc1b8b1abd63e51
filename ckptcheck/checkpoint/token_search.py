"""Searches texts for many tokens at once, in time that grows with the text and not with the number of tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

LONGEST_TOKEN = 1000
"""Longest token that is searched for, in characters. Control tokens of released models have at most some 60."""


class TokenSearch:
    """Finds tokens in texts.

    The tokens are sorted. Of those that a text begins with, the longest is the last token not after that text, or a token with
    which that one begins. These beginnings are chained, and a second, longer step along the chain (Myers 1983, *An applicative
    random-access stack*) keeps a walk to the logarithm of its length. So each place of a text costs a logarithm of the tokens.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        """Sort the tokens. Empty ones, and those above LONGEST_TOKEN characters, are left out."""
        self._tokens = sorted({token for token in tokens if 0 < len(token) <= LONGEST_TOKEN})
        self._first_letters = frozenset(token[0] for token in self._tokens)
        self._longest = max(map(len, self._tokens), default=0)
        # number of a token → of the longest other token with which it begins, and of one further along; -1: none
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
        """Return the tokens that stand anywhere in one of the texts, also within or across other tokens."""
        found: set[int] = set()
        for text in texts:
            for at in self._places(text):
                number = self._find_longest(text, at)
                while number >= 0 and number not in found:
                    found.add(number)
                    number = self._parents[number]
        return {self._tokens[number] for number in found}

    def token_at(self, text: str, at: int) -> str | None:
        """Return the longest token that stands in a text from a place on."""
        number = self._find_longest(text, at) if text[at : at + 1] in self._first_letters else -1
        return self._tokens[number] if number >= 0 else None

    def _places(self, text: str) -> Iterator[int]:
        return (at for at, letter in enumerate(text) if letter in self._first_letters)

    def _find_longest(self, text: str, at: int) -> int:
        """Return the number of the longest token from a place on; -1 where there is none."""
        rest = text[at : at + self._longest]
        number = bisect_right(self._tokens, rest) - 1
        while number >= 0 and not rest.startswith(self._tokens[number]):
            leap = self._leaps[number]
            fits = leap < 0 or rest.startswith(self._tokens[leap])
            number = self._parents[number] if fits else leap
        return number
