"""Groups of commands: what their help lists, and commands of two words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import typer.core

from ckptcheck.cli.examples import write_examples


class CommandGroup(typer.core.TyperGroup):
    """Lists its commands with the first paragraph of their help. Typer alone cuts it in the middle of a sentence."""

    sections: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Headings → the commands below each; {}: one heading for all."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands below their headings, in the order in which they were added."""
        for heading, names in (self.sections or {"Commands": tuple(self.commands)}).items():
            rows = [
                (name, " ".join((self.commands[name].help or "").partition("\n\n")[0].split()))
                for name in names
                if name in self.commands
            ]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples of the group."""
        write_examples(ctx, formatter)


class NestedCommandGroup(CommandGroup):
    """The commands of the first level. Also resolves one of two words whose first word is a command: ``refit history FILE``."""

    sections: ClassVar[Mapping[str, Sequence[str]]] = {
        "Checkpoints": ("scan", "diff", "manifest", "verify", "sign", "identity", "series", "join", "critic"),
        "Weight syncs": ("refit", "refit history", "refit lora", "attach", "conformance"),
        "Parity of engine and trainer": ("parity",),
        "Jobs": ("preflight", "gate"),
        "Rules, reports and engines": ("rules", "rule", "report", "doctor", "engine"),
    }

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Offer the commands of one word: a shell would take the second word of ``refit history`` for another argument."""
        return [item for item in super().shell_complete(ctx, incomplete) if " " not in item.value]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Join the first two words where they name a command; a file of that name is ``./history``."""
        if (two_words := " ".join(args[:2])) in self.commands and len(args) > 1:
            args = [two_words, *args[2:]]
        return super().resolve_command(ctx, args)
