"""Every report in the README and the tutorials is what the command prints."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import damage
import pytest
import typer

from ckptcheck.cli.app import build_app
from ckptcheck.linter import rule_loader, settings
from ckptcheck.linter.selection import match_rules
from ckptcheck.verbs import VERBS
from tests.factories.checkpoint_cases import ROOT

pytestmark = pytest.mark.slow

PAGES = [
    ROOT / "README.md",
    ROOT / "docs/index.md",
    ROOT / "docs/settings.md",
    *sorted((ROOT / "docs/tutorials").glob("*.md")),
]
TEXTS = {path: path.read_text(encoding="utf-8") for path in PAGES}
README = TEXTS[ROOT / "README.md"]
BLOCKS = [
    block
    for text in TEXTS.values()
    for block in re.findall(r"```console\n\$ ckptcheck (.+)\n((?:(?!\$ |```).*\n)+)```", text)
]
LONGEST = 120
"""Lines of the README: what does not fit belongs to docs/."""


@pytest.mark.xdist_group("smollm2")
@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=lambda text: text[:30])
def test_the_reports_are_real(smollm2: Path, smollm2_w4a16: Path, tmp_path: Path, command: str, shown: str) -> None:
    import demo

    for name in command.split()[1:]:
        if (harm := getattr(demo, name.replace("-", "_"), None)) is not None:
            harm(damage.linked_copy(smollm2_w4a16 if harm in demo.QUANTIZED else smollm2, tmp_path / name))
    result = subprocess.run(
        [sys.executable, "-m", "ckptcheck", *command.split()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.stdout == shown


def test_there_is_a_report() -> None:
    assert len(BLOCKS) >= 3
    assert "```console\n$ ckptcheck diff sound exported\n" in README


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= LONGEST


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_command_and_option_shown_is_there(path: Path) -> None:
    options = set(re.findall(r"`(--[\w-]+)|`ckptcheck [^`]*?(--[\w-]+)", TEXTS[path]))
    known = {option for _, command in _list_commands(typer.main.get_command(build_app())) for option in command}
    assert {one or other for one, other in options} - {"--help"} <= known
    shown = re.findall(r"^\$ ckptcheck ([a-z]+)|`ckptcheck ([a-z]+)", TEXTS[path], re.MULTILINE)
    assert {one or other for one, other in shown} <= VERBS.keys()


def _list_commands(command: Any) -> Iterator[tuple[str, list[str]]]:
    """Yield every command with its options."""
    for name, inner in command.commands.items():
        yield from (
            _list_commands(inner)
            if hasattr(inner, "commands")
            else [(name, [option for parameter in inner.params for option in parameter.opts])]
        )


def test_every_target_of_make_shown_is_there() -> None:
    targets = re.findall(r"^([\w -]+):(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for page in (README, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        for target in re.findall(r"[`$] ?make ([\w-]+)", page):
            assert target in " ".join(targets).split()


def test_the_settings_are_accepted(tmp_path: Path) -> None:
    text = re.search(r"```toml\n(.+?)```", TEXTS[ROOT / "docs/settings.md"], re.DOTALL)
    assert text
    (tmp_path / "ckptcheck.toml").write_text(text[1], encoding="utf-8")
    project_settings = settings.load_settings(tmp_path / "ckptcheck.toml")
    for pattern in (*project_settings.select, *project_settings.ignored, *project_settings.severities):
        assert match_rules(rule_loader.load_rules(), pattern)
    assert set(tomllib.loads(text[1])) == set(settings.FORMS)


def test_the_example_rule_works(tmp_path: Path) -> None:
    text = re.search(r"```python\n(.+?)```", TEXTS[ROOT / "docs/tutorials/first-rule.md"], re.DOTALL)
    assert text
    path = tmp_path / "lic001_missing_license.py"
    path.write_text(re.sub(r"(?m)^   ", "", text[1]), encoding="utf-8")
    rule = rule_loader.load_rule_file(path)
    assert (rule.code, rule.name, rule.summary) == ("LIC001", "missing-license", "The model has no license.")


def test_the_files_they_link_to_exist() -> None:
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\((?!http|#)([^)#]+)", path.read_text(encoding="utf-8")):
            assert (path.parent / link).exists(), f"{path.name}: {link}"
