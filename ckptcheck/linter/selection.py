"""Selects rules by code, by the beginning of a code, or by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.rule import Rule


def match_rules(rules: Sequence[Rule], pattern: str) -> list[Rule]:
    """Return the rules whose code starts with `pattern` or whose name is `pattern`.

    Raises CkptcheckError, with the nearest code, if there is none.
    """
    name = pattern.strip()
    matches = [rule for rule in rules if name and (rule.code.startswith(name.upper()) or rule.name == name)]
    if not matches:
        known = sorted({rule.code for rule in rules} | {rule.name for rule in rules})
        near = difflib.get_close_matches(name.upper(), known, 1) or difflib.get_close_matches(name, known, 1)
        raise CkptcheckError(
            f"no rule has the code {name!r}" + (f"; did you mean {near[0]}?" if near else ""),
            hint="ckptcheck rules lists them all",
        )
    return matches


def select_rules(rules: Sequence[Rule], patterns: Iterable[str]) -> list[Rule]:
    """Return the rules that match any pattern, in their order; all rules if there is no pattern."""
    names = list(patterns)
    if not names:
        return list(rules)
    codes = {rule.code for pattern in names for rule in match_rules(rules, pattern)}
    return [rule for rule in rules if rule.code in codes]
