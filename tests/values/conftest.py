"""Fixtures for the tests of the value pass."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from tests.factories.checkpoint_cases import CHECKPOINTS, ROOT


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", tmp_path / "ckpt"))


@pytest.fixture(scope="session")
def hook() -> ModuleType:
    """The build hook, which compiles the kernels."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "ckptcheck/values/hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
