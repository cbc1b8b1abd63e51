"""Explains the differences of many tensors in a few sentences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ckptcheck.text.formatting import count

if TYPE_CHECKING:
    from ckptcheck.compare.diagnosis.inputs import DiagnosisInput, TensorKey
    from ckptcheck.compare.diagnosis.verdict import Verdict

MAX_TENSORS = 512
"""Tensors that are examined by default; a last verdict counts the others."""


def diagnose(sides: DiagnosisInput, names: Iterable[str] | None = None, *, most: int = MAX_TENSORS) -> list[Verdict]:
    """Explain why tensors differ. Known causes come first, those of most tensors before others, unknown ones last.

    Args:
        sides: the expected and the actual tensors.
        names: the tensors to examine, usually those known to differ; None for all expected ones. Equal tensors give no
            verdict, so equal sides give an empty list.
        most: number of tensors to examine, spread over all kinds and layers. A last verdict counts the others.

    Raises what the readers of `sides` raise.
    """
    import numpy as np

    from ckptcheck.compare.diagnosis.search import CauseSearch
    from ckptcheck.compare.diagnosis.summary import summarize
    from ckptcheck.compare.diagnosis.verdict import Verdict

    keys = [
        part
        for key in sides.group_into_keys(sides.expected if names is None else names)
        for part in _unstacked(key, sides)
    ]
    examined = _spread(keys, most)
    search = CauseSearch(sides)
    # NaN, Inf and overflow are among the causes.
    with np.errstate(all="ignore"):
        verdicts = summarize([finding for key in examined for finding in search.explain(key)], sides)
    if len(examined) < len(keys):
        remaining = len(keys) - len(examined)
        text = f"{count(remaining, 'further difference')} not examined"
        evidence = f"{len(examined):,} of {len(keys):,} were examined, spread over all kinds and layers"
        verdicts.append(Verdict(("unexamined",), text, (), "unknown", evidence))
    return verdicts


def _unstacked(key: TensorKey, sides: DiagnosisInput) -> list[TensorKey]:
    """Return a key for each expert of a stacked tensor [experts, ...]; any other key unchanged."""
    from ckptcheck.compare.diagnosis.inputs import TensorKey
    from ckptcheck.compare.diagnosis.tensor_name import EXPERT

    if len(key.names) > 1 or key.expert_index is not None or not EXPERT.search(key.label):
        return [key]
    expected, actual = sides.read("expected", key.names[0]), sides.read("actual", key.names[0])
    if expected is None or actual is None or expected.patterns.ndim != 3 or expected.shape != actual.shape:
        return [key]
    return [TensorKey(key.names, key.parsed_name, key.part, expert) for expert in range(expected.shape[0])]


def _spread(keys: list[TensorKey], most: int) -> list[TensorKey]:
    """Choose at most `most` keys, spread evenly over the labels and within each label, in their given order."""
    if len(keys) <= most:
        return keys
    labels: dict[str, list[int]] = {}
    for number, key in enumerate(keys):
        labels.setdefault(key.label, []).append(number)
    indices: list[int] = []
    remaining = most
    for index, numbers in enumerate(sorted(labels.values(), key=len)):
        share = min(len(numbers), remaining // (len(labels) - index))
        indices += [numbers[at * len(numbers) // share] for at in range(share)]
        remaining -= share
    return [keys[number] for number in sorted(indices)]
