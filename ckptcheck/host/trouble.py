"""What can go wrong on the far side: a verb raised, the process died, or it does not answer."""

from __future__ import annotations

import re

from ckptcheck.errors import CkptcheckError

ERROR = re.compile(r"\b[A-Z]\w*(Error|Exception): \S|Fatal Python error")

COUNTED = re.compile(r"\d+ validation errors? for ")
"""How pydantic's ValidationError begins; its reasons follow, each with ``[type=…]`` behind it."""
FRAME = re.compile(r'File "(.*)", line (\d+) in (.*)')


class VerbError(CkptcheckError):
    """A verb raised; the process lives and can be asked again. kind: the class; said: its message; trace: its end."""

    def __init__(self, host: str, verb: str, kind: str, said: str, trace: str) -> None:
        super().__init__(f"{host} could not {verb}: {kind}: {_reason(said)}")
        self.kind = kind
        self.said = said
        self.trace = trace


def _reason(said: str) -> str:
    r"""Return the line that says why: the first, save in what pydantic raises, whose first line only counts its reasons.

    >>> _reason("1 validation error for ModelConfig\n  Value error, it is too long. [type=value_error, input_value=…]")
    'it is too long.'
    >>> _reason("2 validation errors for Config\ndtype\n  Input should be 'auto' [type=literal_error]\nranks\n  no [type=x]")
    "dtype: Input should be 'auto'"
    """
    first, *rest = said.strip().splitlines() or ["it did not say why"]
    if not COUNTED.match(first) or not rest:
        return first
    place = f"{rest.pop(0).strip()}: " if not rest[0].startswith(" ") and len(rest) > 1 else ""
    reason = " ".join(line.strip() for line in rest).partition(" [type=")[0]
    return place + reason.removeprefix("Value error, ")


class HostDied(CkptcheckError):
    """The process is gone. last_words: the last lines that it and its children printed."""

    def __init__(self, message: str, last_words: tuple[str, ...] = ()) -> None:
        super().__init__(message, f"its last words: {telling(last_words)}" if last_words else None)
        self.last_words = last_words


def telling(words: tuple[str, ...]) -> str:
    """Choose the line that says most: the last that names an error, for engines talk on after it; else the last."""
    return next((line for line in reversed(words) if ERROR.search(line)), words[-1])


class HostHung(HostDied):
    """It did not answer in time and was ended. last_words end with where each of its threads was."""

    def __init__(self, message: str, last_words: tuple[str, ...] = ()) -> None:
        super().__init__(message, last_words)
        if where := _where(last_words):
            self.hint = f"it was in {where}"


def _where(words: tuple[str, ...]) -> str | None:
    """Return the innermost function of the thread that serves, as faulthandler says it."""
    after = [at + 1 for at, line in enumerate(words) if line.startswith("Current thread") and at + 1 < len(words)]
    found = FRAME.search(words[after[-1]]) if after else None
    return f"{found[3]} ({found[1].rpartition('/')[2]}, line {found[2]})" if found else None
