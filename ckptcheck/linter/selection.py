"""Selects rules by code, by the beginning of a code, or by name; and finds the rule that a person means by an inexact spelling."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.rule import Rule
from ckptcheck.text.formatting import join_truncated

CODE = re.compile(r"(?<![a-z0-9])([a-z]{2,5})[ _-]?0*([1-9][0-9]{0,3})(?![a-z0-9])", re.IGNORECASE)
"""A code as people write it: CFG003, cfg3, CFG-03, and within longer text, such as the name of a rule's file."""
MOST_LISTED = 8
"""Most codes in a message, if a beginning fits several."""
MOST_NEAR = 3
"""Most suggested names, if several contain the words."""


def match_rules(rules: Sequence[Rule], pattern: str) -> list[Rule]:
    """Return the rules whose code starts with `pattern` or whose name is `pattern`.

    Raises CkptcheckError, with suggestions, if there is none: a selection has to be spelled exactly.
    """
    name = pattern.strip()
    matches = [rule for rule in rules if name and (rule.code.startswith(name.upper()) or rule.name == name.lower())]
    if not matches:
        near = _suggest(rules, name)
        raise CkptcheckError(
            f"no rule has the code {name!r}" + (f"; did you mean {near}?" if near else ""),
            hint="ckptcheck rules lists them all",
        )
    return matches


def find_rules(rules: Sequence[Rule], words: str) -> list[Rule]:
    """Return the rules that a reader means: by code, by name, by the beginning of a code, or by an inexact spelling.

    A name may belong to several rules: one for each form of checkpoint. Raises CkptcheckError if the meaning is not certain.
    """
    words = words.strip()
    if exact := [rule for rule in rules if words.upper() == rule.code or _normalize_name(words) == rule.name]:
        return exact
    begun = [rule.code for rule in rules if words and rule.code.startswith(words.upper())]
    coded = _find_codes(rules, words)
    if len(begun) > 1:
        raise CkptcheckError(
            f"{words} is the beginning of {len(begun)} codes: {join_truncated(begun, MOST_LISTED)}",
            hint=f"did you mean {coded[0].code}?" if coded else "name one of them; ckptcheck rules lists them all",
        )
    return match_rules(rules, words) if begun else coded or match_rules(rules, words)


def select_rules(rules: Sequence[Rule], patterns: Iterable[str]) -> list[Rule]:
    """Return the rules that match any pattern, in their order; all rules if there is no pattern."""
    names = list(patterns)
    if not names:
        return list(rules)
    codes = {rule.code for pattern in names for rule in match_rules(rules, pattern)}
    return [rule for rule in rules if rule.code in codes]


def find_asked(rules: Sequence[Rule], patterns: Iterable[str]) -> frozenset[str]:
    """Return the codes of rules that patterns name by their whole code or name; a family of rules asks for none of them."""
    return frozenset(
        rule.code
        for pattern in patterns
        for rule in match_rules(rules, pattern)
        if pattern.strip().upper() == rule.code or pattern.strip().lower() == rule.name
    )


def _normalize_name(words: str) -> str:
    """Return a name as rules have it.

    >>> _normalize_name("Missing Layer"), _normalize_name("missing_layer")
    ('missing-layer', 'missing-layer')
    """
    return re.sub(r"[\s_-]+", "-", words.strip().lower())


def _find_codes(rules: Sequence[Rule], words: str) -> list[Rule]:
    """Return the rules whose codes occur in the words, in any usual spelling."""
    codes = {f"{match[1].upper()}{int(match[2]):03}" for match in CODE.finditer(words)}
    return [rule for rule in rules if rule.code in codes]


def _suggest(rules: Sequence[Rule], words: str) -> str:
    """Return a suggestion: a code, a name, or the names that contain all of these words; "" if nothing is near."""
    if coded := _find_codes(rules, words):
        return coded[0].code
    name, names = _normalize_name(words), sorted({rule.name for rule in rules})
    near = difflib.get_close_matches(words.upper(), sorted(rule.code for rule in rules), 1)
    near = near or difflib.get_close_matches(name, names, 1)
    parts = set(name.split("-"))
    near = near or [each for each in names if parts <= set(each.split("-"))][:MOST_NEAR]
    return " or ".join(filter(None, (", ".join(near[:-1]), *near[-1:])))
