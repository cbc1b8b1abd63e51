"""Says how two runs of tokens differ."""

from __future__ import annotations

from collections.abc import Sequence


def apart(due: Sequence[int], found: Sequence[int]) -> str:
    """Name the first difference.

    >>> apart([1, 5, 6], [1, 1, 5, 6]), apart([1, 5], [1, 5, 2]), apart([1, 5], [1, 7])
    ('it begins with token 1 twice', 'it goes on with token 2', 'token 7 stands where 5 is due, at place 1')
    """
    if list(found[1:]) == list(due) and found[:1] == due[:1]:
        return f"it begins with token {found[0]} twice"
    if list(found[1:]) == list(due):
        return f"token {found[0]} stands before it"
    for place, (one, other) in enumerate(zip(due, found, strict=False)):
        if one != other:
            return f"token {other} stands where {one} is due, at place {place}"
    if len(found) > len(due):
        return f"it goes on with token {found[len(due)]}"
    return f"it ends before token {due[len(found)]}"
