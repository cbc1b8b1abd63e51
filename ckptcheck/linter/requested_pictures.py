"""Has pictures made where somebody asks for them. What a picture can be is in pictures.py, which no other run loads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from ckptcheck.errors import EvidenceError
from ckptcheck.linter.rule import Skip

if TYPE_CHECKING:
    from ckptcheck.linter.pictures import Picture, PictureMaker

_ARE_ASKED_FOR: ContextVar[bool] = ContextVar("pictures", default=False)


@contextmanager
def ask_for_pictures() -> Iterator[None]:
    """Let every report that is made inside of this context have pictures.

    The command does it for ``--format html``. In a notebook::

        with ckptcheck.ask_for_pictures():
            report = ckptcheck.scan("./my-model")
        report
    """
    token = _ARE_ASKED_FOR.set(True)
    try:
        yield
    finally:
        _ARE_ASKED_FOR.reset(token)


def are_asked_for() -> bool:
    """Return whether reports that are made now have pictures."""
    return _ARE_ASKED_FOR.get()


def make_pictures(makers: Callable[[], Iterable[tuple[str, PictureMaker]]]) -> tuple[Picture, ...]:
    """Return the pictures, () where nobody asked for them. One that cannot be made is replaced by the reason.

    makers: returns (title, maker) of each picture, in the order of the page; the title stands above a reason. It is called only
    where pictures are asked for.
    """
    if not are_asked_for():
        return ()
    from ckptcheck.linter.pictures import NoPicture

    pictures: list[Picture] = []
    for title, maker in makers():
        try:
            picture = maker()
        except (Skip, EvidenceError, OSError) as error:
            picture = NoPicture(title, str(error))
        except Exception as error:
            # the report has to be written whatever is odd about its evidence
            picture = NoPicture(title, f"it could not be drawn: {type(error).__name__}: {error}")
        if picture is not None:
            pictures.append(picture)
    return tuple(pictures)
