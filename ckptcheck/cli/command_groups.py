"""Groups of commands: what their help lists, and commands of two words."""

from __future__ import annotations

from typing import Any

import typer.core


class CommandGroup(typer.core.TyperGroup):
    """Lists its commands with the first paragraph of their help. Typer alone cuts it in the middle of a sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, in the order in which they were added."""
        rows = [(name, (command.help or "").partition("\n\n")[0]) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl([(name, " ".join(text.split())) for name, text in rows])


class NestedCommandGroup(CommandGroup):
    """Also resolves a command of two words whose first word is a command too: ``refit history FILE``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Join the first two words where they name a command; a file of that name is ``./history``."""
        if (two_words := " ".join(args[:2])) in self.commands and len(args) > 1:
            args = [two_words, *args[2:]]
        return super().resolve_command(ctx, args)
