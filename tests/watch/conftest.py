"""What every test of the watch starts from."""

from __future__ import annotations

import pytest

from ckptcheck.watch import Watch


@pytest.fixture(autouse=True)
def time_for_all_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a watch look at all tensors at each sync, and before it ends, however busy the machine. A test may say otherwise."""
    monkeypatch.setitem(Watch.__init__.__kwdefaults__, "share", 1e6)
    monkeypatch.setitem(Watch.__init__.__kwdefaults__, "budget", 60.0)
    monkeypatch.setitem(Watch.__init__.__kwdefaults__, "background", False)
