"""Chooses rules by code or by the beginning of a code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from ckptcheck.errors import CkptcheckError
from ckptcheck.rule import Rule


def matching(rules: Sequence[Rule], pattern: str) -> list[Rule]:
    """Return the rules whose code starts with `pattern` or whose name is `pattern`.

    Raises CkptcheckError, with the nearest code, when there is none.
    """
    wanted = pattern.strip()
    found = [rule for rule in rules if wanted and (rule.code.startswith(wanted.upper()) or rule.name == wanted)]
    if not found:
        known = sorted({rule.code for rule in rules} | {rule.name for rule in rules})
        near = difflib.get_close_matches(wanted.upper(), known, 1) or difflib.get_close_matches(wanted, known, 1)
        raise CkptcheckError(
            f"no rule has the code {wanted!r}" + (f"; did you mean {near[0]}?" if near else ""),
            hint="ckptcheck rules lists them all",
        )
    return found


def selected(rules: Sequence[Rule], patterns: Iterable[str]) -> list[Rule]:
    """Return the rules that any pattern names, in the order of the pack; all rules where there is no pattern."""
    wanted = list(patterns)
    if not wanted:
        return list(rules)
    codes = {rule.code for pattern in wanted for rule in matching(rules, pattern)}
    return [rule for rule in rules if rule.code in codes]
