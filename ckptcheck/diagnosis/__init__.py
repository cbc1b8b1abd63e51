"""Why two tensors differ, in one sentence: a bank of causes, each held against every bit.

A cause is named only where it reproduces what is there. `diagnose` takes what was expected and what was found.
"""

from ckptcheck.diagnosis.bits import Bits
from ckptcheck.diagnosis.diagnose import diagnose
from ckptcheck.diagnosis.geometry import Geometry
from ckptcheck.diagnosis.sides import Sides
from ckptcheck.diagnosis.verdict import Verdict

__all__ = ["Bits", "Geometry", "Sides", "Verdict", "diagnose"]
