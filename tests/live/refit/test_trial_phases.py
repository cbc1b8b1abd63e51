"""The phases of a trial: each is announced or followed, and rounds say what is left."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ckptcheck.live.refit.trial_state import Timeouts, TrialPhases


def test_a_phase_is_a_line_or_is_followed_with_its_limit() -> None:
    lines: list[str] = []
    with TrialPhases(Timeouts(), 0, lines.append).run("sync", "sleep"):
        assert lines == ["sleep"]
    followed: list[tuple[str, float]] = []

    @contextmanager
    def follow(label: str, most: float) -> Iterator[None]:
        followed.append((label, most))
        yield

    with TrialPhases(Timeouts(), 0, lines.append, follow).run("sync", "wake"):
        assert followed == [("wake", Timeouts().seconds("sync", 0))]
    assert lines == ["sleep"]


def test_every_round_but_the_last_says_what_is_left() -> None:
    lines: list[str] = []
    phases = TrialPhases(Timeouts(), 0, lines.append)
    assert list(phases.count_rounds(3)) == [1, 2, 3]
    assert [re.sub(r"\d+ seconds?", "T", line) for line in lines] == [
        "step 1 of 3 is done after T, about T left",
        "step 2 of 3 is done after T, about T left",
    ]
    assert list(phases.count_rounds(0)) == []
