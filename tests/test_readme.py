"""Every report in the README is what the command prints."""

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

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n\$ ckptcheck (.+)\n((?:(?!\$ |```).*\n)+)```", README)


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
    assert len(BLOCKS) >= 1


def test_the_settings_are_accepted(tmp_path: Path) -> None:
    text = re.search(r"```toml\n(.+?)```", README, re.DOTALL)
    assert text
    (tmp_path / "ckptcheck.toml").write_text(text[1], encoding="utf-8")
    project_settings = settings.load_settings(tmp_path / "ckptcheck.toml")
    for pattern in (*project_settings.select, *project_settings.ignored, *project_settings.severities):
        assert match_rules(rule_loader.load_rules(), pattern)
    assert set(tomllib.loads(text[1])) == set(settings.FORMS)


def test_the_example_rule_works(tmp_path: Path) -> None:
    text = re.search(r"```python\n(.+?)```", README, re.DOTALL)
    assert text
    path = tmp_path / "lic001_missing_license.py"
    path.write_text(re.sub(r"(?m)^   ", "", text[1]), encoding="utf-8")
    rule = rule_loader.load_rule_file(path)
    assert (rule.code, rule.name, rule.summary) == ("LIC001", "missing-license", "The model has no license.")


def test_the_files_it_links_to_exist() -> None:
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
