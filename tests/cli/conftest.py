"""The working directory of the tests of the command."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.factories.checkpoint_cases import CHECKPOINTS


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A working directory with a sound and a broken checkpoint in it."""
    shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", tmp_path / "sound")
    shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", tmp_path / "broken")
    (tmp_path / "broken/model-00002-of-00003.safetensors").unlink()
    return tmp_path
