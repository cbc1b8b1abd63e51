"""The entrance: from two sides to a few sentences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ckptcheck.phrase import count

if TYPE_CHECKING:
    from ckptcheck.diagnosis.sides import Key, Sides
    from ckptcheck.diagnosis.verdict import Verdict

MOST = 512


def diagnose(sides: Sides, names: Iterable[str] | None = None, *, most: int = MOST) -> list[Verdict]:
    """Say why tensors differ: named causes first, those of most tensors before others, what is unknown last.

    names: the tensors to look at, those that are known to differ; all that were expected where it is None. Equal ones
    are passed over, so equal sides give an empty list. At most `most` are looked at, spread over all kinds and layers;
    a last verdict then counts the others. Raises what the readers raise.
    """
    import numpy as np

    from ckptcheck.diagnosis.search import Search
    from ckptcheck.diagnosis.summary import summary
    from ckptcheck.diagnosis.verdict import Verdict

    keys = [part for key in sides.keys(sides.expected if names is None else names) for part in _unstacked(key, sides)]
    chosen = _spread(keys, most)
    search = Search(sides)
    with np.errstate(all="ignore"):  # NaN, Inf and overflow are what is looked for
        verdicts = summary([finding for key in chosen for finding in search.explain(key)], sides)
    if len(chosen) < len(keys):
        left = len(keys) - len(chosen)
        text = f"{count(left, 'further difference')} not looked at"
        evidence = f"{len(chosen):,} of {len(keys):,} were, spread over all kinds and layers"
        verdicts.append(Verdict(("unexamined",), text, (), "unknown", evidence))
    return verdicts


def _unstacked(key: Key, sides: Sides) -> list[Key]:
    """Take a tensor that stacks experts ([experts, ...]) apart; anything else is itself."""
    from ckptcheck.diagnosis.place import EXPERT
    from ckptcheck.diagnosis.sides import Key

    if len(key.names) > 1 or key.number is not None or not EXPERT.search(key.label):
        return [key]
    expected, actual = sides.read("expected", key.names[0]), sides.read("actual", key.names[0])
    if expected is None or actual is None or expected.patterns.ndim != 3 or expected.shape != actual.shape:
        return [key]
    return [Key(key.names, key.place, key.part, expert) for expert in range(expected.shape[0])]


def _spread(keys: list[Key], most: int) -> list[Key]:
    """Choose so many, as evenly as possible over the labels and within each; in the order they came in."""
    if len(keys) <= most:
        return keys
    labels: dict[str, list[int]] = {}
    for number, key in enumerate(keys):
        labels.setdefault(key.label, []).append(number)
    chosen: list[int] = []
    left = most
    for index, numbers in enumerate(sorted(labels.values(), key=len)):
        share = min(len(numbers), left // (len(labels) - index))
        chosen += [numbers[at * len(numbers) // share] for at in range(share)]
        left -= share
    return [keys[number] for number in sorted(chosen)]
