"""The examples in docstrings are run."""

from __future__ import annotations

import doctest
import importlib

import pytest

from tests.conftest import needs
from tests.paths import ROOT

WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "ckptcheck").rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_of_a_module_hold(name: str) -> None:
    if name.endswith(".ipc"):
        needs("torch")
    outcome = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert outcome.attempted
    assert not outcome.failed
