"""The environment variables that another Python may see."""

from __future__ import annotations

import os

MISLEADING = frozenset(
    [
        *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONSAFEPATH", "PYTHONWARNINGS", "VIRTUAL_ENV"),
        *("PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIREMENT", "PIP_CONSTRAINT"),
    ]
)
"""They point to the caller's own packages, or would have pip install elsewhere."""


def clean_environment() -> dict[str, str]:
    """Return the environment without what points to the caller's own Python."""
    return {name: value for name, value in os.environ.items() if name not in MISLEADING}
