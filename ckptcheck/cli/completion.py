"""Completion of words in bash, zsh and fish: prints the script for a shell, or installs it where the shell looks for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from ckptcheck.errors import CkptcheckError

NAME, VARIABLE = "ckptcheck", "_CKPTCHECK_COMPLETE"
PLACES = {
    "bash": (".bash_completions/ckptcheck.sh", ".bashrc", "source ~/.bash_completions/ckptcheck.sh"),
    "zsh": (".zfunc/_ckptcheck", ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
    "fish": (".config/fish/completions/ckptcheck.fish", "", ""),
}
"""Shell → the place of the script below the home folder, and the line that the shell's own file needs, if it needs any."""


def list_options() -> list[click.Option]:
    """Return the options that print the script for the user's shell, and that install it."""
    return [
        click.Option([name], is_flag=True, expose_value=False, is_eager=True, callback=callback, help=help)
        for name, callback, help in (
            ("--install-completion", _install, "Install completion for the current shell."),
            ("--show-completion", _show, "Print the script that completes in the current shell."),
        )
    ]


def _show(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(_write_script(ctx, _find_shell()))
        ctx.exit()


def _install(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    shell = _find_shell()
    place, settings, line = PLACES[shell]
    script = Path.home() / place
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_write_script(ctx, shell) + "\n", encoding="utf-8")
    if settings:
        own = Path.home() / settings
        content = own.read_text(encoding="utf-8", errors="surrogateescape") if own.is_file() else ""
        if line not in content.splitlines():
            with own.open("a", encoding="utf-8") as file:
                file.write(("\n" if content and not content.endswith("\n") else "") + line + "\n")
    click.echo(f"completion for {shell} is installed in {script}; it works in the next shell that you open")
    ctx.exit()


def _write_script(ctx: click.Context, shell: str) -> str:
    completion: Any = get_completion_class(shell)
    script: str = completion(ctx.command, {}, NAME, VARIABLE).source()
    return script.strip()


def _find_shell() -> str:
    """Return the name of the shell that runs the command. Raises CkptcheckError for one without completion."""
    import shellingham

    try:
        shell: str = shellingham.detect_shell()[0]
    except shellingham.ShellDetectionFailure:
        shell = Path(os.environ.get("SHELL", "")).name
    if shell not in PLACES:
        raise CkptcheckError(f"there is completion for {', '.join(PLACES)}, not for {shell or 'an unknown shell'}")
    return shell
