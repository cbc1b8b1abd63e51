"""Explains in one sentence why two tensors differ: tries known causes and compares each with every bit.

The diagnosis names a cause only if it reproduces the actual tensor. `diagnose` takes the expected and the actual
tensors.
"""

from ckptcheck.compare.diagnosis.inputs import AttentionGeometry, DiagnosisInput, TensorBits
from ckptcheck.compare.diagnosis.search import diagnose
from ckptcheck.compare.diagnosis.verdict import Verdict

__all__ = ["AttentionGeometry", "DiagnosisInput", "TensorBits", "Verdict", "diagnose"]
