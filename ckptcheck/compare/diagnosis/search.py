"""Explains the differences of many tensors: tries the causes on each, first each alone, then two together.

A sample is compared before the whole tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ckptcheck.compare.diagnosis import changes, contents
from ckptcheck.compare.diagnosis.changes import elementwise_changes, find_norm_offset, propose_shard_orders
from ckptcheck.compare.diagnosis.contents import find_partial_write
from ckptcheck.compare.diagnosis.difference import DifferenceExtent, describe_difference, locate_difference
from ckptcheck.compare.diagnosis.inputs import DiagnosisInput, TensorKey
from ckptcheck.compare.diagnosis.matrix_pair import MatrixPair, read_matrix_pair
from ckptcheck.compare.diagnosis.matrix_view import Change, MatrixView, SamplePoints, matrices_equal, view_equals
from ckptcheck.compare.diagnosis.moved_rows import find_reordering, find_row_shift
from ckptcheck.compare.diagnosis.quantization_grid import find_quantization
from ckptcheck.compare.diagnosis.scale_factors import find_group_scales, find_scale
from ckptcheck.compare.diagnosis.shapes import explain_shape
from ckptcheck.compare.diagnosis.siblings import STALE, SiblingIndex
from ckptcheck.compare.diagnosis.summary import summarize
from ckptcheck.compare.diagnosis.tensor_name import EXPERT
from ckptcheck.compare.diagnosis.verdict import Cause, Explanation, Verdict
from ckptcheck.text.formatting import count

MAX_TENSORS = 512
"""Tensors that are examined by default; a last verdict counts the others."""
MAX_UNKNOWN = 8
"""After so many unknown differences of one kind, only the cheap causes are tried on its siblings."""

Causes = tuple[Cause, ...]


def diagnose(sides: DiagnosisInput, names: Iterable[str] | None = None, *, most: int = MAX_TENSORS) -> list[Verdict]:
    """Explain why tensors differ. Known causes come first, those of most tensors before others, unknown ones last.

    Args:
        sides: the expected and the actual tensors.
        names: the tensors to examine, usually those known to differ; None for all expected ones. Equal tensors give no
            verdict, so equal sides give an empty list.
        most: number of tensors to examine, spread over all kinds and layers. A last verdict counts the others.

    Raises what the readers of `sides` raise.
    """
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


@dataclass
class CauseSearch:
    """One diagnosis: its input, and what earlier tensors have shown."""

    input: DiagnosisInput
    siblings: SiblingIndex = field(init=False)
    unknown_counts: Counter[str] = field(default_factory=Counter)
    slow_labels: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.siblings = SiblingIndex(self.input)

    def explain(self, key: TensorKey) -> list[Explanation]:
        """Return the causes of one difference; empty if there is none. Members of a fused tensor may have their own causes."""
        missing = [name for name in key.names if name not in self.input.actual]
        if missing:
            keys = [key] if len(key.names) == 1 else [key.for_member(name) for name in missing]
            return [Explanation(each, (Cause("missing", "missing"),)) for each in keys]
        unit = read_matrix_pair(key, self.input)
        if unit is None:
            if len(key.names) > 1:
                return [finding for name in key.names for finding in self.explain(key.for_member(name))]
            return self._explain_shape_difference(key)
        extent = locate_difference(unit.expected, unit.actual)
        if extent is None:
            return _explain_cast(unit)
        return self._explain_difference(unit, extent)

    def _explain_difference(self, unit: MatrixPair, extent: DifferenceExtent) -> list[Explanation]:
        members = [(part, at) for part in unit.split_members() if (at := locate_difference(part.expected, part.actual))]
        if not members:
            causes = self._find_cheap_cause(unit, extent)
            return [_explanation(unit, causes) if causes else self._search_deeper(unit, extent)]
        sample = SamplePoints.choose(unit.actual, unit.expected)
        for change in changes.iterate_fused_rearrangements(unit):
            if view_equals(change.apply(MatrixView.of(unit.expected)), unit.actual, sample):
                return [_explanation(unit, (change.cause,))]
        alone = [(part, at, self._find_cheap_cause(part, at)) for part, at in members]
        if not all(causes for _, _, causes in alone):
            together = self._find_two_causes(unit, fused=True)
            if together:
                return [_explanation(unit, together)]
        return [_explanation(part, causes) if causes else self._search_deeper(part, at) for part, at, causes in alone]

    def _search_deeper(self, unit: MatrixPair, extent: DifferenceExtent) -> Explanation:
        label = unit.key.label
        cheap_only = self.unknown_counts[label] >= MAX_UNKNOWN
        if not cheap_only:
            slow_causes = self._find_slow_cause(unit) if label in self.slow_labels else ()
            if causes := slow_causes or self._find_two_causes(unit, fused=False):
                return _explanation(unit, causes)
            if causes := self._find_slow_cause(unit):
                self.slow_labels.add(label)
                return _explanation(unit, causes)
        self.unknown_counts[label] += 1
        cause = Cause("unknown", "the cause is unknown", "unknown")
        return Explanation(unit.key, (cause,), *describe_difference(unit, extent), cheap_only=cheap_only)

    def _find_cheap_cause(self, unit: MatrixPair, extent: DifferenceExtent) -> Causes:
        """Return one cause out of those that are cheap to try."""
        cause = contents.find_uniform_content(unit.dtype, unit.expected, unit.actual)
        cause = cause or contents.find_loss_on_other_side(unit.dtype, unit.expected, unit.actual)
        if cause is not None:
            return (cause,)
        previous = unit.read_sibling("previous", unit.key.parsed_name.layer, unit.key.expert_index)
        if previous is not None and matrices_equal(previous, unit.actual):
            return (STALE,)
        source, sample = MatrixView.of(unit.expected), SamplePoints.choose(unit.actual, unit.expected)
        for change in (*changes.iterate_matrix_rearrangements(unit), *elementwise_changes(unit)):
            if view_equals(change.apply(source), unit.actual, sample):
                return (change.cause,)
        is_norm = unit.part == "norm" and unit.is_float
        if is_norm and (offset := find_norm_offset(unit.dtype, unit.expected, unit.actual)):
            return (offset,)
        if causes := self.siblings.find_source(unit):
            return causes
        cause = (
            find_partial_write(unit, extent)
            or contents.find_nan_holes(unit.dtype, unit.expected, unit.actual)
            or contents.find_other_rounding(unit)
            or contents.find_bare_codes(unit.dtype, unit.expected, unit.actual)
        )
        if cause is not None:
            return (cause,)
        return self._find_derived_cause(unit, source, sample)

    def _find_derived_cause(
        self, unit: MatrixPair, source: MatrixView, sample: SamplePoints, *, fused: str = ""
    ) -> Causes:
        """Return one cause that follows from the source and the actual tensor: shards or rows that moved, a factor.

        fused: the first cause, if the tensor is fused. Ranks and padding belong to each member, but if the interleave of
        Q, K and V was not undone, the ranks' shards are those of the whole.
        """
        for change in propose_shard_orders(unit, source, unit.actual) if fused in ("", "qkv-interleave") else ():
            if view_equals(change.apply(source), unit.actual, sample):
                return (change.cause,)
        cause = None if fused else find_row_shift(unit, source)
        cause = cause or find_scale(unit, source, sample)
        return (cause,) if cause else ()

    def _find_slow_cause(self, unit: MatrixPair) -> Causes:
        """Return one cause that takes long to try, or explains less than the others."""
        cause = (
            find_group_scales(unit)
            or find_quantization(unit)
            or find_reordering(unit)
            or contents.find_uninitialized_memory(unit.dtype, unit.expected, unit.actual)
        )
        return (cause,) if cause else ()

    def _find_two_causes(self, unit: MatrixPair, *, fused: bool) -> Causes:
        """Return two causes that apply one after the other."""
        sample = SamplePoints.choose(unit.actual, unit.expected)
        arrangements = list(
            changes.iterate_fused_rearrangements(unit, permuted=False)
            if fused
            else changes.iterate_matrix_rearrangements(unit)
        )
        location = self.siblings.find_source(unit, "previous")
        if location:
            return (STALE, *location)
        for view, first in self._iterate_first_causes(unit, arrangements):
            if sample.fits(view) and view_equals(view, unit.actual, sample) and len(first) > 1:
                return first
            for change in (*arrangements, *(() if fused else elementwise_changes(unit))):
                if view_equals(change.apply(view), unit.actual, sample):
                    return (*first, change.cause)
            more = self._find_derived_cause(unit, view, sample, fused=first[0].code if fused else "")
            # A factor has a sign of its own.
            if more and (first[0].code, more[0].code) != ("sign", "scaled"):
                return (*first, *more)
        return ()

    def _iterate_first_causes(
        self, unit: MatrixPair, arrangements: list[Change]
    ) -> Iterator[tuple[MatrixView, Causes]]:
        """Yield what the first of two causes may have made of the expected tensor."""
        for source, causes in self.siblings.iterate_likely_sources(unit):
            yield MatrixView.of(source), causes
        plain = MatrixView.of(unit.expected)
        for change in (*arrangements, *elementwise_changes(unit)):
            yield change.apply(plain), (change.cause,)

    def _explain_shape_difference(self, key: TensorKey) -> list[Explanation]:
        expected, actual = self.input.read("expected", key.names[0]), self.input.read("actual", key.names[0])
        if expected is None or actual is None or (expected.shape == actual.shape and not expected.patterns.size):
            return []
        cause = explain_shape(expected, actual, key.parsed_name.part)
        if cause.code == "shape" and cause.confidence == "unknown":
            return [Explanation(key, (Cause("unknown", "the cause is unknown", "unknown"),), cause.text)]
        return [Explanation(key, (cause,))]


def _explain_cast(unit: MatrixPair) -> list[Explanation]:
    """Explain tensors that are equal after the cast to the actual dtype: a difference only if the cast lost something."""
    if unit.cast_from is None:
        return []
    for name in unit.key.names:
        wide = unit.input.read("expected", name)
        if wide is not None and not contents.survives_cast(wide, unit.dtype):
            text = f"stored as {unit.dtype} instead of {unit.cast_from}, and rounded"
            return [Explanation(unit.key, (Cause("round-trip", text, group="cast"),))]
    return []


def _explanation(unit: MatrixPair, causes: Causes) -> Explanation:
    return Explanation(unit.key, causes, member="" if unit.member is None else unit.part)
