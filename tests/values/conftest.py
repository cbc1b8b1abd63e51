"""Fixtures for the tests of the value pass."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.factories.checkpoint_cases import CHECKPOINTS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", tmp_path / "ckpt"))
