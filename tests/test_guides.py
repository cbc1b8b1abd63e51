"""Every test and every rule that docs/guides.md names is there."""

from __future__ import annotations

import re

from tests.paths import ROOT

PAGE = (ROOT / "docs/guides.md").read_text(encoding="utf-8")


def test_the_tests_that_it_names_are_there() -> None:
    files = list((ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"\btest_\w+(?:\.py)?", PAGE))
    assert len(named) > 30
    there = {path.name for path in files}
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    for name in named:
        assert name in there or f"def {name}(" in text, name


def test_the_rules_that_it_names_are_there() -> None:
    slugs = {re.sub(r"^[a-z]+\d+_", "", path.stem).replace("_", "-") for path in (ROOT / "rules").rglob("*.py")}
    named = set(re.findall(r"`preflight[^`]*` \(([a-z0-9, -]+)[:)]", PAGE))
    rules = {name.strip() for names in named for name in names.split(",")}
    assert len(rules) > 10
    assert rules <= slugs | {"caches"}, rules - slugs
