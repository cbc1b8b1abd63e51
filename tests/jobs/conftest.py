"""Fixtures of the tests of preflight."""

from __future__ import annotations

import math

import pytest

from ckptcheck.jobs import budget


@pytest.fixture
def without_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the steps alone end a budget: on a slow machine the clock would end it first."""
    monkeypatch.setattr(budget, "SECONDS", math.inf)
