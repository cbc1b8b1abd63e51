"""Selects rules by code, by the beginning of a code, or by name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Sequence

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.rule import Rule
from ckptcheck.linter.runner import DOES_NOT_APPLY

CODE = re.compile(r"([A-Za-z]{2,5})[ _-]?(\d{1,9})")
"""A code as people write it: CFG003, cfg3, CFG-03."""
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
    """Return the rules that a reader means: by code, by name, as words or with a hyphen, or by the beginning of a code.

    A name may belong to several rules: one for each form of checkpoint. Raises CkptcheckError as `match_rules` does.
    """
    name = _normalize_name(words)
    exact = [rule for rule in rules if name in (rule.code.lower(), rule.name)]
    return exact or match_rules(rules, words)


def select_rules(rules: Sequence[Rule], patterns: Iterable[str]) -> list[Rule]:
    """Return the rules that match any pattern, in their order; all rules if there is no pattern."""
    names = list(patterns)
    if not names:
        return list(rules)
    codes = {rule.code for pattern in names for rule in match_rules(rules, pattern)}
    return [rule for rule in rules if rule.code in codes]


def find_asked(
    rules: Sequence[Rule], patterns: Iterable[str], ignored: Collection[str] = ()
) -> dict[str, frozenset[str]]:
    """Return the codes of rules that patterns name by their whole code or name; a family of rules asks for none of them.

    Each pattern has its own key: what is said where none of its rules applies. ignored: codes that the user leaves out.
    """
    asked = {
        f"--select {pattern.strip()}: {DOES_NOT_APPLY}": frozenset(
            rule.code
            for rule in match_rules(rules, pattern)
            if rule.code not in ignored
            and (pattern.strip().upper() == rule.code or pattern.strip().lower() == rule.name)
        )
        for pattern in patterns
    }
    return {sentence: codes for sentence, codes in asked.items() if codes}


def _normalize_name(words: str) -> str:
    """Return a name as rules have it.

    >>> _normalize_name("Missing Layer"), _normalize_name("missing_layer")
    ('missing-layer', 'missing-layer')
    """
    return re.sub(r"[\s_-]+", "-", words.strip().lower())


def _suggest(rules: Sequence[Rule], words: str) -> str:
    """Return a suggestion: a code, a name, or the names that contain all of these words; "" if nothing is near."""
    match = CODE.fullmatch(words)
    if match and (code := f"{match[1].upper()}{int(match[2]):03}") in {rule.code for rule in rules}:
        return code
    name, names = _normalize_name(words), sorted({rule.name for rule in rules})
    near = difflib.get_close_matches(words.upper(), sorted(rule.code for rule in rules), 1)
    near = near or difflib.get_close_matches(name, names, 1)
    parts = set(name.split("-"))
    near = near or [each for each in names if parts <= set(each.split("-"))][:MOST_NEAR]
    return " or ".join(filter(None, (", ".join(near[:-1]), *near[-1:])))
