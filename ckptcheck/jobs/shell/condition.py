"""Decides the tests of a launch script that depend only on its own variables: ``[ "$X" = fp8 ]``, ``[[ -z $Y ]]``."""

from __future__ import annotations

import fnmatch
import operator
from collections.abc import Callable, Mapping, Sequence

from ckptcheck.jobs.shell.word import Word

TESTS = ("[", "[[", "test")
NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le, "-gt": operator.gt, "-ge": operator.ge,
}  # fmt: skip
LONGEST = 500
"""Largest length of a pattern, in characters: fnmatch turns it into a regular expression, which can backtrack."""


def decide_test(words: Sequence[Word], is_set: Callable[[str], bool]) -> bool | None:
    """Return whether a command is true; None if that depends on anything outside the script.

    Args:
        words: A command such as ``[ A = B ]``. A variable that nothing sets is empty in it.
        is_set: Whether the script sets a variable, for ``-v NAME``.
    """
    if not words:
        return None
    program = words[0].text
    if program in ("true", ":"):
        return True
    if program in ("false", "getopts"):
        # The script has no options to read.
        return False
    if program not in TESTS:
        return None
    operands = list(words[1:])
    if operands and operands[-1].text in ("]", "]]"):
        operands.pop()
    return _decide(operands, is_set)


def _decide(words: list[Word], is_set: Callable[[str], bool]) -> bool | None:
    if words and words[0].text == "!":
        answer = _decide(words[1:], is_set)
        return None if answer is None else not answer
    if len(words) == 1:
        return None if words[0].reason else bool(words[0].text)
    if len(words) == 2:
        return _decide_unary(words[0].text, words[1], is_set)
    if len(words) != 3 or words[0].reason or words[2].reason:
        return None
    left, kind, right = (word.text for word in words)
    if kind in NUMBERS:
        try:
            return NUMBERS[kind](int(left), int(right))
        except ValueError:
            return None
    if kind in ("=", "==", "!="):
        if len(right) > LONGEST or right.count("*") > 4:
            return None
        return fnmatch.fnmatchcase(left, right) is (kind != "!=")
    return None


def _decide_unary(kind: str, word: Word, is_set: Callable[[str], bool]) -> bool | None:
    if kind == "-v":
        return is_set(word.text)
    if word.reason:
        return None
    if kind in ("-z", "-n"):
        return bool(word.text) is (kind == "-n")
    # Whether a file exists depends on the machine.
    return None
