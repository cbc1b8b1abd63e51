"""Groups of commands whose help says of each what it does, whole."""

from __future__ import annotations

from typing import Any

import typer.core


class Verbs(typer.core.TyperGroup):
    """Lists its commands with the first paragraph of their help; by default it would be cut in the middle of a sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, in the order in which they were added."""
        rows = [(name, (command.help or "").partition("\n\n")[0]) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl([(name, " ".join(text.split())) for name, text in rows])
