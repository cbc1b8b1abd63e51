"""Refuses options that were written without a value, as an unset variable of a shell leaves them: ``--select "$RULES"``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ckptcheck.errors import UsageError


def refuse_empty_values(command: Any, ctx: Any, words: Sequence[str]) -> None:
    """Raise UsageError for the first option or argument of a command whose value is "".

    An option that chooses nothing would pass as if it were not there, and an empty path is the working directory.
    """
    given, _, _ = command.make_parser(ctx).parse_args(args=list(words))
    for parameter in command.params:
        value = given.get(parameter.name)
        if "" not in (value if isinstance(value, (list, tuple)) else [value]):
            continue
        if parameter.param_type_name == "option":
            name = max(parameter.opts, key=len)  # --output, not -o
            raise UsageError(f"{name} has no value", hint=f"leave {name} out, or give it a value")
        raise UsageError(
            f"{parameter.make_metavar(ctx).strip('[]. …')} is an empty name",
            hint="is a variable of your shell not set?",
        )
