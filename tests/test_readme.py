"""Every report in the README and the guides for checkpoints is what the command prints."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import damage
import pytest

from ckptcheck.linter import rule_loader, settings
from ckptcheck.linter.selection import match_rules
from tests.factories.checkpoint_cases import ROOT

pytestmark = pytest.mark.slow

PAGES = [
    ROOT / "README.md",
    *(ROOT / f"docs/{name}.md" for name in ("ci", "diff", "first-scan", "index")),
]
TEXTS = {path: path.read_text(encoding="utf-8") for path in PAGES}
README = TEXTS[ROOT / "README.md"]
BLOCKS = [
    block
    for text in TEXTS.values()
    for block in re.findall(r"```console\n\$ ckptcheck (.+)\n((?:(?!\$ |```).*\n)+)```", text)
]
PASSED = re.compile(r"\d+ rules passed")
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
    # A new rule passes on sound targets: how many passed is no part of what a page says.
    assert PASSED.sub("rules passed", result.stdout) == PASSED.sub("rules passed", shown)


def test_there_is_a_report() -> None:
    assert len(BLOCKS) >= 3
    assert "```console\n$ ckptcheck diff sound exported\n" in README


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= LONGEST


def test_every_target_of_make_shown_is_there() -> None:
    targets = re.findall(r"^([\w -]+):(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for page in (README, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        for target in re.findall(r"[`$] ?make ([\w-]+)", page):
            assert target in " ".join(targets).split()


def test_the_settings_are_accepted(tmp_path: Path) -> None:
    text = re.search(r"```toml\n(.+?)```", TEXTS[ROOT / "docs/ci.md"], re.DOTALL)
    assert text
    (tmp_path / "ckptcheck.toml").write_text(text[1], encoding="utf-8")
    project_settings = settings.load_settings(tmp_path / "ckptcheck.toml")
    for pattern in (*project_settings.select, *project_settings.ignored, *project_settings.severities):
        assert match_rules(rule_loader.load_rules(), pattern)
    assert set(tomllib.loads(text[1])) == set(settings.FORMS)


def test_until_there_is_a_release_no_line_installs_from_an_index() -> None:
    """pip resolves ``ckptcheck[cloud]`` where ckptcheck is installed, and asks an index that has no such entry elsewhere."""
    files = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "ckptcheck").rglob("*.py")]
    named = re.compile(r"(pip install|uvx|uv tool install|pipx install) ['\"]?ckptcheck\b")
    assert [str(file) for file in files if named.search(file.read_text(encoding="utf-8"))] == []
