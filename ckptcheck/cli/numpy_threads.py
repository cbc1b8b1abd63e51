"""Imports numpy for a command with one thread of OpenBLAS: to start its pool takes longer than a small scan.

Only commands whose products of matrices are small are named here, and only a command does this: Python programs that call a verb
have other work for numpy.
"""

from __future__ import annotations

import os

NAME = "OPENBLAS_NUM_THREADS"
VERBS = ("scan", "judge", "verify", "identity", "series")
"""Verbs that always use numpy, and multiply no large matrices."""


def import_numpy() -> None:
    """Import numpy. The environment is the same before and after, so that engines and other children keep all their cores."""
    if NAME in os.environ:
        return
    os.environ[NAME] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        del os.environ[NAME]
