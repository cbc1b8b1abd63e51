"""Compares what a trainer exports before its first step with the checkpoint that it loaded: the one place to catch an exporter.

The cold load of a trial comes from the trainer's own export, so a fault of the exporter is in both, and no sync shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.live.refit.tensor_bits import read_bits
from ckptcheck.live.runtime.trainers.spawn import BUFFERS

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.compare.diagnosis import TensorBits, Verdict
    from ckptcheck.live.runtime.trainers.base import Weight

MAX_DIAGNOSED = 64
"""Number of differing tensors to explain."""


@dataclass(frozen=True)
class SourceComparison:
    """The trainer's export at step 0 beside the source of the trial."""

    compared: int = 0
    """Tensors of which the digests were compared."""
    differing: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Tensors of the source that the trainer does not export, under this or another name."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Exported tensor → why it could not be compared."""
    verdicts: tuple[Verdict, ...] = ()
    """Why tensors differ."""


def compare_with_source(
    source: Checkpoint, weights: Sequence[Weight], sent: Mapping[str, str], exported: Path
) -> SourceComparison:
    """Compare digests of the exported tensors with those of the source, cast to the trainer's dtype as torch does.

    sent: name → digest of what the trainer exports. exported: the checkpoint that the trainer saved at step 0; the causes are
    looked for in it. Raises EvidenceError where the source cannot be read.
    """
    from ckptcheck.compare.matching.cast import can_cast
    from ckptcheck.live.runtime.engines.digest import digest

    differing, skipped, matched = [], {}, set()
    digests_by_name: dict[str, str] = {}
    for weight in weights:
        tensor = source.tensors.get(weight.name)
        if tensor is None:
            skipped[weight.name] = "the source has no tensor of that name"
        elif tuple(tensor.shape) != tuple(weight.shape):
            differing.append(weight.name)
            matched.add(weight.name)
        elif tensor.dtype != weight.dtype and not can_cast(tensor.dtype, weight.dtype):
            skipped[weight.name] = f"it is {tensor.dtype} in the source and {weight.dtype} in the trainer"
            matched.add(weight.name)
        else:
            matched.add(weight.name)
            digests_by_name[weight.name] = digest(_read_cast(source, weight.name, weight.dtype).patterns)
            if digests_by_name[weight.name] != sent.get(weight.name):
                differing.append(weight.name)
    # a tied head lies in the source under the name of the embedding, or twice
    known = set(digests_by_name.values())
    skipped = {name: reason for name, reason in skipped.items() if sent.get(name) not in known}
    dtypes = {weight.dtype for weight in weights}
    missing = tuple(
        name
        for name, tensor in source.tensors.items()
        if name not in matched
        and len(tensor.shape) > 1
        and not name.endswith(BUFFERS)
        and not any(
            can_cast(tensor.dtype, dtype) and digest(_read_cast(source, name, dtype).patterns) in known
            for dtype in dtypes
        )
    )
    comparison = SourceComparison(len(digests_by_name), tuple(differing), missing, skipped)
    return _explain(source, weights, comparison, exported) if differing else comparison


def _explain(
    source: Checkpoint, weights: Sequence[Weight], comparison: SourceComparison, exported: Path
) -> SourceComparison:
    from ckptcheck.compare.diagnosis import DiagnosisInput, diagnose

    written = open_checkpoint(str(exported))
    dtypes = {weight.name: weight.dtype for weight in weights}
    expected = {
        name: partial(_read_cast, source, name, dtype) for name, dtype in dtypes.items() if name in source.tensors
    }
    actual = {name: partial(read_bits, written, name) for name in written.tensors}
    names = [name for name in comparison.differing if name in expected]
    return replace(comparison, verdicts=tuple(diagnose(DiagnosisInput(expected, actual), names, most=MAX_DIAGNOSED)))


def _read_cast(source: Checkpoint, name: str, dtype: str) -> TensorBits:
    from ckptcheck.compare.diagnosis import TensorBits
    from ckptcheck.compare.matching.cast import cast_patterns

    bits = read_bits(source, name)
    return TensorBits(dtype, cast_patterns(bits.patterns, bits.dtype, dtype))
