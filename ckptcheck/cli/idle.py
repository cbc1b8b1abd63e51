"""An option that would have no effect is refused: whoever wrote it believes that it had one."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from ckptcheck.errors import CkptcheckError
from ckptcheck.phrase import listed


class Given:
    """The options that the user wrote on the command line, by the names of the command's parameters."""

    def __init__(self, ctx: typer.Context) -> None:
        self._known = {param.name for param in ctx.command.params}
        self._spelled: dict[str, str] = {}
        for param in ctx.command.params:
            name = param.name or ""
            source = ctx.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                words = param.secondary_opts if ctx.params.get(name) is False else param.opts
                self._spelled[name] = max(words or param.opts, key=len)  # --output, not -o

    def __contains__(self, name: str) -> bool:
        assert name in self._known, f"the command has no parameter {name}"
        return name in self._spelled

    def refuse(self, idle: Sequence[str], where: str, hint: str | None = None) -> None:
        """Refuse those of the options that the user wrote. where: what makes them idle, as ``with --attach``.

        Raises CkptcheckError that names them all.
        """
        flags = [self._spelled[name] for name in idle if name in self]
        if flags:
            raise CkptcheckError(f"{listed(flags)} {'means' if len(flags) == 1 else 'mean'} nothing {where}", hint)
