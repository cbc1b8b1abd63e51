"""The fault matrix of the diagnosis, and how long a difference takes: what was expected, and noise that nothing explains."""

from __future__ import annotations

import time

import numpy as np

from ckptcheck.compare.diagnosis import DiagnosisInput, TensorBits, diagnose
from tests.benchmarks.figures import line


def _seconds(expected: np.ndarray, actual: np.ndarray) -> float:
    name = "model.layers.0.mlp.down_proj.weight"
    began = time.perf_counter()
    diagnose(DiagnosisInput({name: lambda: TensorBits("BF16", expected)}, {name: lambda: TensorBits("BF16", actual)}))
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    from tests.compare.diagnosis.fault_matrix import table

    print("\ndiagnosis: the fault matrix")
    for row in table():
        print(row)
    random = np.random.default_rng(0)
    expected, other = (
        (random.normal(0, 0.02, (4096, 4096)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        for _ in range(2)
    )
    for name, actual in (("transposed", expected.T.copy()), ("unknown", other)):
        line(f"a difference of 33 MB of bf16, {name}: seconds", f"{_seconds(expected, actual):.1f}", "")


if __name__ == "__main__":
    main()
