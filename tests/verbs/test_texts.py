"""No text names an option or a setting of ours that is not there: rules' pages, messages, guides."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ckptcheck.cli.app import build_app
from ckptcheck.verbs import VERBS
from tests.paths import ROOT
from tests.test_public_interface import _commands

COMMANDS = dict(_commands(build_app()))
OPTIONS = {
    words: {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
    for words, command in COMMANDS.items()
}
SETTINGS = {words: {name.replace("_", "-") for name in command.verb.settings} for words, command in COMMANDS.items()}
FILES = sorted(
    path
    for folder in ("ckptcheck", "rules", "docs", ".github")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".md", ".toml", ".yml") and not {"recipes", "worker"} & {*path.parts}
) + [ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "action.yml")]
COMMAND = re.compile(rf"ckptcheck ({'|'.join(sorted(VERBS, key=len, reverse=True))})\b([^`\n]*)")
END = re.compile(r" && | \| |[;,:)] |ckptcheck |\"|', ")
"""What ends a command within its line."""
OPTION = re.compile(r"(?<![\w/-])--[a-z][a-z0-9-]*(?![\w-])")
SET = re.compile(r"--set ([a-z][a-z-]*[a-z])\b")
OF_OTHERS = {"--device", "--seed", "--response", "--keep", "--index-url", "--timeout"}
"""Options of servers, make and pip that are called like settings of ours."""


def _list_commands(text: str) -> Iterator[tuple[str, str]]:
    """Yield (words of the command, what follows in its line) for every command that a text shows."""
    for match in COMMAND.finditer(text):
        yield match[1], END.split(match[2])[0]


def _list_mistakes(text: str) -> Iterator[str]:
    """Yield a sentence for every option of ours that a text names and that is not there."""
    for words, rest in _list_commands(text):
        unknown = {*OPTION.findall(rest)} - OPTIONS[words] | {*SET.findall(rest)} - SETTINGS[words]
        yield from (f"ckptcheck {words} has no {name}" for name in unknown)
    settings = {name for names in SETTINGS.values() for name in names}
    options = {name for names in OPTIONS.values() for name in names}
    yield from (f"there is no setting {name}" for name in {*SET.findall(text)} - settings)
    written = {*OPTION.findall(text)} & {f"--{name}" for name in settings} - options - OF_OTHERS
    yield from (f"{name} is a setting: --set {name[2:]}=VALUE" for name in written)


def test_every_option_that_a_text_names_is_there() -> None:
    assert len(FILES) > 1000
    mistakes = {
        str(path.relative_to(ROOT)): found
        for path in FILES
        if (found := [*_list_mistakes(path.read_text(encoding="utf-8"))])
    }
    assert not mistakes


def test_a_mistake_is_seen() -> None:
    assert [*_list_mistakes("`ckptcheck scan x --heders-only`, `ckptcheck diff a b --headers-only`")] == [
        "ckptcheck scan has no --heders-only",
        "ckptcheck diff has no --headers-only",
    ]
    assert [*_list_mistakes("give --max-kl 1, or --set max-k=1")] == [
        "there is no setting max-k",
        "--max-kl is a setting: --set max-kl=VALUE",
    ]
