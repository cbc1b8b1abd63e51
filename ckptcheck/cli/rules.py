"""``ckptcheck rules`` lists the rules, ``ckptcheck rule CODE`` prints one's page."""

from __future__ import annotations

import enum
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

RULE_FOLDERS = typer.Option("--rules", metavar="DIR", help="Load further rules from this folder. Runs their code.")


class Format(enum.StrEnum):
    """Forms of the list."""

    text = "text"
    json = "json"


def rules(
    format: Annotated[Format, typer.Option(help="Form of the list.")] = Format.text,
    folders: Annotated[list[Path], RULE_FOLDERS] = [],  # noqa: B006
) -> None:
    """List every rule with its severity."""
    from ckptcheck import pack, settings

    loaded = pack.load([*settings.find(Path.cwd()).rule_folders, *folders])
    if format is Format.json:
        keys = ("code", "name", "severity", "on", "summary")
        json.dump([{key: getattr(rule, key) for key in keys} for rule in loaded], sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    from rich.console import Console
    from rich.table import Table

    from ckptcheck.reporters.text import STYLE, width_for

    table = Table(box=None, pad_edge=False)
    for heading in ("Code", "Name", "Severity", "What it sees"):
        table.add_column(heading, no_wrap=heading in ("Code", "Severity"), overflow="fold")
    for rule in loaded:
        table.add_row(rule.code, rule.name, f"[{STYLE[rule.severity]}]{rule.severity}[/]", rule.summary.rstrip("."))
    Console(highlight=False, width=width_for(sys.stdout)).print(table)


def rule(
    code: Annotated[str, typer.Argument(help="A rule's code or name.")],
    folders: Annotated[list[Path], RULE_FOLDERS] = [],  # noqa: B006
) -> None:
    """Print a rule's page: what it checks, why it matters, how to fix it, where it was seen."""
    from rich.console import Console
    from rich.markdown import Markdown

    from ckptcheck import pack, settings
    from ckptcheck.reporters.text import width_for
    from ckptcheck.select import matching

    for found in matching(pack.load([*settings.find(Path.cwd()).rule_folders, *folders]), code):
        page = f"# {found.code} {found.name} ({found.severity})\n\n{found.explanation.strip()}\n"
        if sys.stdout.isatty():
            Console(width=width_for(sys.stdout)).print(Markdown(page))
        else:
            sys.stdout.write(page)
