"""A side starts as rarely as its set-ups allow."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.rule import Skip
from ckptcheck.live.experiments.side import Side
from ckptcheck.live.runtime.process.errors import RemoteError, WorkerDied


class Process:
    """A process that notes when it is closed."""

    def __init__(self, setup: str) -> None:
        self.setup, self.is_closed = setup, False

    def close(self) -> None:
        self.is_closed = True


class Starts:
    """Starts processes; fails for set-ups that have an error."""

    def __init__(self, **errors: Exception) -> None:
        self.errors, self.calls = errors, list[tuple[str, str]]()

    def __call__(self, setup: str, replaced: Process | None) -> Process:
        self.calls.append((setup, replaced.setup if replaced is not None else ""))
        if setup in self.errors:
            raise self.errors[setup]
        return Process(setup)


def test_a_side_starts_once_for_a_set_up_and_hands_on_its_process() -> None:
    start = Starts()
    side = Side[str, Process](start)
    first = side.ready("base")
    assert side.ready("base") is first
    side.ready("eager")
    assert start.calls == [("base", ""), ("eager", "base")]
    last = side.ready("base")
    side.discard()
    assert last.is_closed
    assert (side.process, side.setup) == (None, None)


@pytest.mark.parametrize(
    ("error", "keeps"),
    [
        (lambda: RemoteError("fake", "start", "ValueError", "no compiler", ""), True),
        (lambda: WorkerDied("fake died"), False),
    ],
)
def test_a_set_up_that_does_not_start_is_not_tried_twice(error: Callable[[], CkptcheckError], keeps: bool) -> None:
    """The process of before lives where the new start was refused, and is ended where it died."""
    start = Starts(inductor=error())
    side = Side[str, Process](start)
    base = side.ready("base")
    with pytest.raises(type(error())):
        side.ready("inductor")
    assert base.is_closed is not keeps
    with pytest.raises(Skip):
        side.ready("inductor")
    side.ready("eager")
    assert start.calls == [("base", ""), ("inductor", "base"), ("eager", "base" if keeps else "")]


def test_where_the_jobs_own_set_up_does_not_start_no_other_is_tried() -> None:
    start = Starts(job=CkptcheckError("it is not installed"))
    side = Side[str, Process](start, job="job")
    with pytest.raises(CkptcheckError):
        side.ready("job")
    with pytest.raises(Skip, match="it is not installed"):
        side.ready("float32")
    assert [setup for setup, _ in start.calls] == ["job"]
