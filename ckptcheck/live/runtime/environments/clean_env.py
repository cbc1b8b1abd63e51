"""The environment variables that the Python of an environment may see."""

from __future__ import annotations

import os

MISLEADING = frozenset(
    [
        *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONSAFEPATH", "PYTHONWARNINGS", "VIRTUAL_ENV"),
        *("PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIREMENT", "PIP_CONSTRAINT"),
    ]
)
"""Variables that point to the caller's own packages, or make pip install elsewhere."""


def clean_env() -> dict[str, str]:
    """Return the environment variables without those that point to the caller's own Python."""
    return {name: value for name, value in os.environ.items() if name not in MISLEADING}
