"""The errors of a worker: a call raised, the process died, or the process did not answer in time."""

from __future__ import annotations

import re

from ckptcheck.errors import CkptcheckError

ERROR_LINE = re.compile(r"\b[A-Z]\w*(Error|Exception): \S|Fatal Python error")

PYDANTIC_COUNT = re.compile(r"\d+ validation errors? for ")
"""The first line of a pydantic ValidationError; its reasons follow, each with a trailing ``[type=…]``."""
NO_CPU_KERNEL = re.compile(r"Unsupported CPU attention configuration: head_dim=(\d+)")
"""What vLLM's kernels for CPUs say of heads of a size that they were not built for (csrc/cpu/cpu_attn.cpp)."""
FRAME = re.compile(r'File "([^"]*)", line (\d+) in (.*)')
"""A frame as faulthandler prints it."""


class RemoteError(CkptcheckError):
    """A function of the worker raised; the worker lives and can be called again."""

    def __init__(
        self, worker: str, method: str, exception_type: str, remote_message: str, remote_traceback: str
    ) -> None:
        super().__init__(
            f"{worker} could not {method.replace('_', ' ')}: {exception_type}: {_first_reason(remote_message)}"
        )
        self.exception_type = exception_type
        self.remote_message = remote_message
        self.remote_traceback = remote_traceback
        """The end of the traceback."""


def _first_reason(message: str) -> str:
    r"""Return the line that says why: the first, except for pydantic's errors, whose first line only counts the reasons.

    >>> _first_reason("1 validation error for ModelConfig\n  Value error, it is too long. [type=value_error, input_value=…]")
    'it is too long.'
    >>> _first_reason("2 validation errors for Config\ndtype\n  Input should be 'auto' [type=literal_error]\nranks\n  no [type=x]")
    "dtype: Input should be 'auto'"
    >>> _first_reason("Unsupported CPU attention configuration: head_dim=16 isa=2 kv_cache_idx=0")
    "vLLM's CPU kernels do not take heads of 16; a GPU, or --engine sglang, does"
    """
    first, *rest = message.strip().splitlines() or ["it did not say why"]
    if found := NO_CPU_KERNEL.search(first):
        return f"vLLM's CPU kernels do not take heads of {found[1]}; a GPU, or --engine sglang, does"
    if not PYDANTIC_COUNT.match(first) or not rest:
        return first
    place = f"{rest.pop(0).strip()}: " if not rest[0].startswith(" ") and len(rest) > 1 else ""
    reason = " ".join(line.strip() for line in rest).partition(" [type=")[0]
    return place + reason.removeprefix("Value error, ")


class WorkerDied(CkptcheckError):
    """The worker process is dead. log_tail: the last lines that it and its children printed."""

    def __init__(self, message: str, log_tail: tuple[str, ...] = ()) -> None:
        super().__init__(message, f"its last output: {most_telling_line(log_tail)}" if log_tail else None)
        self.log_tail = log_tail


def most_telling_line(lines: tuple[str, ...]) -> str:
    """Return the last line that names an error, because engines print more after it; without one, the last line."""
    return next((line for line in reversed(lines) if ERROR_LINE.search(line)), lines[-1])


class WorkerTimeout(WorkerDied):
    """The worker did not answer in time and was ended. log_tail ends with the stacks of its threads."""

    def __init__(self, message: str, log_tail: tuple[str, ...] = ()) -> None:
        super().__init__(message, log_tail)
        if function := _innermost_function(log_tail):
            self.hint = f"it was in {function}"


def _innermost_function(lines: tuple[str, ...]) -> str | None:
    """Return the innermost function of the serving thread, from the stacks that faulthandler printed."""
    stack_starts = [
        index + 1 for index, line in enumerate(lines) if line.startswith("Current thread") and index + 1 < len(lines)
    ]
    frame = FRAME.search(lines[stack_starts[-1]]) if stack_starts else None
    return f"{frame[3]} ({frame[1].rpartition('/')[2]}, line {frame[2]})" if frame else None
