"""Every case of every rule, and the hygiene of the pack."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from attached import attached
from cases import CHECKPOINTS, MEGATRON, ROOT, Case, all_cases, build, line
from compared import comparison
from gridded import measured
from jobs import job
from ladders import attribution
from localized import localization
from probed import probed
from recorded import history
from refitted import played
from rolled import judged, series

from ckptcheck import manifest, pack
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.open import open_checkpoint, open_target
from ckptcheck.checkpoint.options import Options
from ckptcheck.cli.rules import markdown_table
from ckptcheck.report import Report
from ckptcheck.rule import Rule
from ckptcheck.run import Evidence, run
from ckptcheck.values.measure import attach

RULES = pack.load()
CASES = list(all_cases())
MADE: dict[str, Callable[[Mapping[str, Any], Path], Evidence]] = {
    "refit": played,
    "job": job,
    "servers": lambda table, _: attached(table),
    "engines": lambda table, _: attached(table),
    "history": lambda table, folder: history(table, folder / "syncs.jsonl"),
    "rollouts": lambda table, _: judged(table),
    "rollout-series": lambda table, _: series(table),
    "matrix": lambda table, _: measured(table),
    "probe": probed,
    "comparison": comparison,
    "attribution": lambda table, _: attribution(table),
    "localization": lambda table, _: localization(table),
}
"""What a rule looks at, where that is no checkpoint: how a case's table becomes evidence."""
SECTIONS = ["What it checks", "Why it matters", "How to fix", "When it can be wrong", "Seen in"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, tmp_path: Path) -> None:
    if "python" in case.table:
        file, _, name = case.table["python"].partition("::")
        assert f"\ndef {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), "there is no such test"
        return
    if (made := MADE.get(case.rule.on)) is not None:
        _holds(case, run(made(case.table, tmp_path), [case.rule]))
        return
    ckpt = opened(build(case.table, tmp_path / "ckpt"))
    if "options" in case.table:
        assert isinstance(ckpt, Checkpoint)
        asked = {
            key: tuple(value) if isinstance(value, list) else value for key, value in case.table["options"].items()
        }
        ckpt.options = Options(**asked)
    if case.rule.on == "manifest":  # taken of the base, as it was before anything was done to it
        before = manifest.take(open_checkpoint(str(CHECKPOINTS / case.table["base"])))
        assert isinstance(ckpt, Checkpoint)
        report = run(manifest.compare(ckpt, before), [case.rule])
    else:
        report = run(ckpt, [case.rule])
    _holds(case, report)


def opened(path: Path) -> Checkpoint | Megatron:
    """Open a target, its values to be read."""
    found = open_target(str(path))
    if isinstance(found, Checkpoint):
        return attach(found)
    found.reads_values = True
    attach(found.values_view)
    return found


def _holds(case: Case, report: Report) -> None:
    assert not report.crashed
    assert [line(finding) for finding in report.findings] == case.table.get("expect", [])
    assert [reason for _, reason in report.skipped] == ([case.table["skip"]] if "skip" in case.table else [])


def test_a_case_says_what_it_shows() -> None:
    for case in CASES:
        assert case.table["title"], case
        assert ("expect" in case.table) == (case.kind == "bad"), case
    titles = [(case.rule.code, case.table["title"]) for case in CASES]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_hygiene(rule: Rule) -> None:
    assert rule.path is not None
    assert rule.path.stem == f"{rule.code.lower()}_{rule.name.replace('-', '_')}"
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name)
    assert not re.match(r"(check|no|invalid|bad|wrong|use)-", rule.name), "name the defect"
    headings = re.findall(r"^## (.+)$", rule.explanation, re.MULTILINE)
    assert headings == SECTIONS
    for section in SECTIONS:
        body = rule.explanation.split(f"## {section}\n")[1].split("\n## ")[0]
        assert len(body.strip()) > 10, f"{section} is empty"
    assert rule.summary.endswith(".")
    assert len(rule.summary) < 100
    cases = tomllib.loads(rule.path.with_suffix(".toml").read_text(encoding="utf-8"))
    assert cases.keys() == {"bad", "ok"}
    assert len(cases["ok"]) >= len(cases["bad"]) >= 1


def test_no_case_file_without_a_rule() -> None:
    named = {rule.path.with_suffix(".toml") for rule in RULES if rule.path}
    assert set((ROOT / "rules").rglob("*.toml")) == named


@pytest.mark.parametrize("base", sorted(path.name for path in (ROOT / "fixtures/checkpoints").iterdir()))
def test_the_bases_are_sound(base: str) -> None:
    report = run(attach(open_checkpoint(str(ROOT / "fixtures/checkpoints" / base))), RULES)
    assert [line(finding) for finding in report.findings] == []
    assert report.verdict == "clean"


@pytest.mark.parametrize("base", sorted(path.name for path in MEGATRON.iterdir()))
def test_the_megatron_bases_are_sound(base: str) -> None:
    report = run(opened(MEGATRON / base), RULES)
    assert [line(finding) for finding in report.findings] == []
    assert report.verdict == "clean"


def test_the_table_of_rules_is_up_to_date() -> None:
    written = (ROOT / "rules/README.md").read_text(encoding="utf-8")
    assert written == markdown_table(RULES), "ckptcheck rules --format markdown > rules/README.md"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_is_announced_as_it_is(rule: Rule) -> None:
    """The file of a built-in rule is run only when the rule looks; until then the text of the file speaks for it."""
    assert rule.path is not None
    loaded = pack.load_file(rule.path)
    told = (rule.code, rule.name, rule.severity, rule.on, rule.explanation, rule.when is None)
    assert told == (
        *(loaded.code, loaded.name, loaded.severity, loaded.on, loaded.explanation),
        loaded.when is None,
    )


def test_a_scan_runs_no_file_of_a_rule_that_has_nothing_to_look_at() -> None:
    program = (
        "import sys; from ckptcheck import pack; from ckptcheck.run import run\n"
        "from ckptcheck.checkpoint.open import open_checkpoint\n"
        f"run(open_checkpoint({str(CHECKPOINTS / 'tiny-llama')!r}), pack.load())\n"
        "print(*(name for name in sys.modules if name.startswith('ckptcheck_rule_')))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    families = {name.removeprefix("ckptcheck_rule_")[:3] for name in ran}
    assert "idx" in families
    assert not families & {"ref", "par", "prb", "job", "meg", "his", "att", "loc", "cmp"}
