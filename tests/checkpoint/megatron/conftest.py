"""Copies of the Megatron fixtures, to be damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.factories.checkpoint_cases import MEGATRON


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that copies a fixture by its name."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(MEGATRON / name, tmp_path / name))

    return copy
