"""Why `diff` has no tolerance by default: what an absolute one of 0.1 lets pass, measured on SmolLM2-135M-Instruct.

An element "could be zeroed" if it is no farther from 0 than the tolerance, a tensor if all of its elements are. Measured in
November 2026: with 0.1, 46.9 % of all elements could be zero and pass (5.2 % with 0.01), but no tensor as a whole: each has one
weight at least that is larger than 0.29. Weights as they are drawn (a normal of 0.02, so a router of a new mixture of experts)
pass as a whole: rules/comparison/cmp005 has such a case.
"""

from __future__ import annotations

import sys
from math import prod
from pathlib import Path

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.values.stats import TensorStats
from ckptcheck.values.value_pass import ValuePass
from tests.benchmarks.figures import line
from tests.benchmarks.headers import ROOT


def passing(folder: Path, tolerance: float) -> tuple[int, int, int, int]:
    """Return how many tensors could be zeroed and still pass, of how many, and the same in elements."""
    ckpt = open_checkpoint(str(folder), value_reader=ValuePass())
    tensors = ckpt.values.tensors.values()
    small = [stats for stats in tensors if stats.absmax <= tolerance and not stats.nan and not stats.inf]
    return len(small), len(tensors), sum(map(_elements, small)), sum(map(_elements, tensors))


def _elements(stats: TensorStats) -> int:
    return prod(stats.shape)


def changed(folder: Path, tolerance: float) -> float:
    """Return the share of all elements that could be set to zero each by itself."""
    import numpy as np

    from ckptcheck.values.detectors.byte_compare import read_tensor_bytes
    from ckptcheck.values.dtypes import FORMATS, decode

    ckpt = open_checkpoint(str(folder))
    small = total = 0
    for name, tensor in ckpt.tensors.items():
        values = decode(
            tensor.dtype, np.frombuffer(read_tensor_bytes(ckpt, name, 0, tensor.nbytes), FORMATS[tensor.dtype].unsigned)
        )
        small += int((np.abs(values) <= tolerance).sum())
        total += values.size
    return small / total


def main() -> None:
    """Measure and print."""
    sys.path.insert(0, str(ROOT / "fixtures"))
    import smollm2

    folder = smollm2.default_folder()
    print(f"\ntolerance: tensors of {folder.name} that could be all zero and still pass")
    for tolerance in (1e-1, 1e-2, 1e-3):
        names, number, elements, total = passing(folder, tolerance)
        line(
            f"atol {tolerance:g}: tensors (share of all elements)", f"{names} of {number} ({elements / total:.1%})", ""
        )
        line(f"atol {tolerance:g}: elements that could be zeroed one by one", f"{changed(folder, tolerance):.1%}", "")


if __name__ == "__main__":
    main()
