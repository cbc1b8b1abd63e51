"""Stages of long work: one phase after the other, each over before the next begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ckptcheck.text.observer import SILENT, Observer


class Noting(Observer):
    """Notes when a phase begins and ends."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    @contextmanager
    def phase(self, label: str, most: float | None = None) -> Iterator[None]:
        self.notes.append(f"{label} begins")
        try:
            yield
        finally:
            self.notes.append(f"{label} ends")


def test_a_stage_lasts_until_the_next_one() -> None:
    observer = Noting()
    with observer.stages() as begin:
        begin("one")
        begin("two")
        assert observer.notes == ["one begins", "one ends", "two begins"]
    assert observer.notes[-1] == "two ends"


def fail(begin: Callable[[str], None]) -> None:
    begin("one")
    raise RuntimeError("the engine died")


def test_a_stage_that_fails_ends() -> None:
    observer = Noting()
    with pytest.raises(RuntimeError, match="the engine died"), observer.stages() as begin:
        fail(begin)
    assert observer.notes == ["one begins", "one ends"]


def test_nobody_has_to_look() -> None:
    with SILENT.stages() as begin:
        begin("one")
