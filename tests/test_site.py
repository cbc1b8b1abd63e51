"""The site that `make docs` builds: a page for every rule, every page in the navigation, and no link that leads nowhere."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from ckptcheck.linter.report import Report
from ckptcheck.linter.rule import Finding
from ckptcheck.linter.rule_loader import load_rules
from ckptcheck.reporters import sarif
from tests.paths import ROOT


def load_builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "docs/build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "docs"
    load_builder().assemble_pages(folder)
    return folder


def test_every_rule_has_a_page_with_its_cases_behind_the_guides(pages: Path) -> None:
    for rule in load_rules():
        text = (pages / f"rules/{rule.code}.md").read_text(encoding="utf-8")
        matter, _, text = text.removeprefix("---\n").partition("---\n\n")
        assert yaml.safe_load(matter)["search"]["boost"] < 1
        assert text.startswith(f"# {rule.code} {rule.name}\n")
        assert "## Examples" in text
        assert "It stays quiet where" in text
    index = (pages / "rules/index.md").read_text(encoding="utf-8")
    assert all(f"({rule.code}.md)" in index for rule in load_rules())


def test_no_link_leads_out_of_the_site(pages: Path) -> None:
    for page in pages.rglob("*.md"):
        for link in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(?=[)#])", page.read_text(encoding="utf-8")):
            target = (page.parent / link).resolve()
            assert target.is_relative_to(pages.resolve()), f"{page.name}: {link}"
            assert target.exists(), f"{page.name}: {link}"


def test_the_navigation_has_every_page(pages: Path) -> None:
    named = re.findall(r"[\w/-]+\.md$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    there = {str(page.relative_to(pages)) for page in pages.rglob("*.md")}
    assert sorted(named) == sorted(page for page in there if not re.fullmatch(r"rules/[A-Z]+\d+\.md", page))


def test_the_options_and_the_api_are_the_ones_there_are(pages: Path) -> None:
    options = (pages / "reference/options.md").read_text(encoding="utf-8")
    assert "## ckptcheck refit history" in options
    assert "`--headers-only`" in options
    assert "The command: `ckptcheck scan`." in (pages / "reference/api.md").read_text(encoding="utf-8")
    assert "| `--set near-zero-threshold` | " in options
    assert (
        "| `--fail-on [error|warning|info|never]` | Exit with 1 on findings of this severity or a worse one. \\[default: error\\] |"
        in options
    )


def test_a_finding_links_to_the_page_of_its_rule() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    rule = next(rule for rule in load_rules() if rule.code == "CFG028")
    found = Report("model", findings=(Finding(rule.code, rule.name, "info", "a message"),))
    address = json.loads(sarif.render([found], [rule]))["runs"][0]["tool"]["driver"]["rules"][0]["helpUri"]
    assert address.startswith(urls["Rules"])
    assert (ROOT / "rules" / address.removeprefix(urls["Rules"])).is_file()


@pytest.mark.slow
def test_mkdocs_builds_it_without_a_warning(pages: Path, tmp_path: Path) -> None:
    if any(importlib.util.find_spec(name) is None for name in ("mkdocs", "material")):
        pytest.skip("needs mkdocs-material (make docs installs it)")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").replace("docs_dir: build/docs", f"docs_dir: {pages}")
    (tmp_path / "mkdocs.yml").write_text(
        settings.replace("site_dir: site", f"site_dir: {tmp_path / 'site'}"), encoding="utf-8"
    )
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", str(tmp_path / "mkdocs.yml")]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "site/rules/IDX001/index.html").is_file()
    assert "console.css" in (tmp_path / "site/first-scan/index.html").read_text(encoding="utf-8")
    index = json.loads((tmp_path / "site/search/search_index.json").read_text(encoding="utf-8"))["docs"]
    boosts = {entry["location"]: entry.get("boost", 1) for entry in index}
    assert max(boosts["rules/IDX001/"], boosts["rules/"]) < boosts["first-scan/"]
