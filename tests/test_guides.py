"""Every test and every rule that docs/guides.md names is there, and the table of experiments has every experiment."""

from __future__ import annotations

import re

from ckptcheck.live.experiments.attribution.experiments import EXPERIMENTS
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


def test_the_table_of_experiments_has_every_experiment() -> None:
    page = (ROOT / "docs/kl-grows.md").read_text(encoding="utf-8")
    table = page.partition("| experiment | what it changes | needs |\n")[2].partition("\n\n")[0]
    shown = [name.strip() for row in table.splitlines()[1:] for name in row.split("|")[1].split(",")]
    assert sorted(shown) == sorted(experiment.name for experiment in EXPERIMENTS)
