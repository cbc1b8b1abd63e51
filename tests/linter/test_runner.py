"""What the runner makes of rules: which view they get, in which order they run, what a crash costs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import ckptcheck
from ckptcheck import Problem, Skip, rule
from ckptcheck.checkpoint.open import open_checkpoint, open_target
from ckptcheck.errors import EvidenceError
from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Report
from ckptcheck.linter.rule import Rule
from ckptcheck.linter.runner import run_rules
from tests.paths import FIXTURES

PARTS = {
    "tiny-llama": {"checkpoint", "values", "config", "layers"},
    "tiny-llama-sharded": {"checkpoint", "values", "config", "layers", "index"},
    "tiny-chat": {"checkpoint", "values", "config", "layers", "tokenizer"},
    "tiny-w4a16": {"checkpoint", "values", "config", "layers", "quantization"},
}
KINDS = {"checkpoint", "values", "config", "layers", "index", "tokenizer", "quantization", "megatron", "dcp", "job"}


@pytest.mark.parametrize("name", PARTS)
def test_a_checkpoint_offers_a_view_of_each_part_that_it_has(name: str) -> None:
    ckpt = open_checkpoint(str(FIXTURES / "checkpoints" / name))
    assert {kind for kind in KINDS if ckpt.view_for(kind) is not None} == PARTS[name]
    assert {id(ckpt.view_for(kind)) for kind in PARTS[name]} == {id(ckpt)}, "the view is the checkpoint itself"


def test_a_megatron_checkpoint_offers_its_weights_to_rules_about_values() -> None:
    run = open_target(str(FIXTURES / "megatron" / "tp2-pp2"))
    assert {kind for kind in KINDS if run.view_for(kind) is not None} == {"megatron", "dcp", "values"}
    weights = run.view_for("values")
    assert weights is not run
    assert getattr(weights, "view_for")("checkpoint") is None  # noqa: B009 - the type is the view's own


class Played(EvidenceDefaults):
    kind = "played"
    target = "somewhere"
    subject = ""

    def __init__(self, unread: dict[str, str] | None = None) -> None:
        self.unread = unread or {}
        self.counts = {"files": 0, "tensors": 0, "bytes": 0}
        self.asked: list[str] = []

    def view_for(self, kind: str) -> object | None:
        if kind == "broken":
            raise ValueError("no such part")
        return self if kind in ("played", "values") else None


def made(code: str, on: str = "played", outcome: object = None, **options: Any) -> Rule[Played]:
    @rule(code, code.lower(), severity="error", on=on, **options)
    def check(evidence: Played) -> Iterator[Problem]:
        evidence.asked.append(code)
        if isinstance(outcome, Problem):
            yield outcome
        elif isinstance(outcome, BaseException):
            raise outcome

    return check


def test_rules_about_values_run_last_and_findings_keep_the_order_of_the_rules() -> None:
    evidence = Played()
    rules = [made("A001", "values", Problem("a")), made("B001", outcome=Problem("b")), made("C001", "elsewhere")]
    report = run_rules(evidence, rules)
    assert evidence.asked == ["B001", "A001"]
    assert [finding.code for finding in report.findings] == ["A001", "B001"]
    assert report.passed == ()


def test_a_consequence_is_an_info_where_its_cause_is_found_and_stands_after_it() -> None:
    follows = made("A001", outcome=Problem("apart", hint="look", follows=("B001", "C001")))
    cause = made("C001", outcome=Problem("lost"))
    report = run_rules(Played(), [follows, made("B001"), cause])
    assert [(each.severity, each.code, each.hint) for each in report.findings] == [
        ("error", "C001", None),
        ("info", "A001", "mend what C001 names"),
    ]
    cases: tuple[tuple[list[Rule[Played]], Any], ...] = (
        ([follows, made("B001")], {}),
        ([follows, cause], {"ignored": {"C001": "we know"}}),
        ([follows, made("C001", outcome=Problem("lost", severity="info"))], {}),
        ([follows, cause], {"severities": {"A001": "error"}}),
    )
    for rules, options in cases:
        found = {each.code: each for each in run_rules(Played(), rules, **options).findings}["A001"]
        assert (found.severity, found.hint) == ("error", "look")


class Unread(Played):
    def require(self, kind: str) -> None:
        if kind == "values":
            raise Skip("nobody reads them")


def test_no_rule_runs_on_what_it_cannot_check() -> None:
    evidence = Unread()
    rules = [made("A001", "values"), made("B001"), made("C001", "values", when=lambda _: False)]
    report = run_rules(evidence, rules)
    assert evidence.asked == ["B001"]
    assert (report.skipped, report.passed) == ((("A001", "nobody reads them"),), ("B001",))


def test_each_rule_has_one_outcome_and_a_crash_stops_no_other() -> None:
    rules = [
        made("A001"),
        made("B001", outcome=Skip("nothing to look at")),
        made("C001", outcome=ZeroDivisionError("x")),
        made("D001", outcome=EvidenceError("the disk is gone")),
        made("E001", "broken"),
        made("F001", when=lambda evidence: False),
        made("G001", when=lambda evidence: evidence.missing),
        made("H001"),
    ]
    report = run_rules(Played(), rules, ignored={"H001": "we know"})
    assert report.passed == ("A001",)
    assert report.skipped == (("B001", "nothing to look at"), ("H001", "we know"))
    crashed = dict(report.crashed)
    assert crashed.keys() == {"C001", "D001", "E001", "G001"}
    assert crashed["D001"] == "the disk is gone"
    assert crashed["E001"].startswith("ValueError: no such part")
    assert report.verdict == "incomplete"


def test_no_rule_passes_while_something_could_not_be_read() -> None:
    report = run_rules(Played({"a.json": "Permission denied"}), [made("A001"), made("B001", outcome=Problem("b"))])
    assert report.passed == ()
    assert report.crashed == (("A001", "could not read a.json: Permission denied"),)
    assert [finding.code for finding in report.findings] == ["B001"]


def test_files_that_share_a_reason_are_named_before_it() -> None:
    unread = {"a.json": "Permission denied", "b.json": "it ends early", "c.json": "Permission denied"}
    assert run_rules(Played(unread), [made("A001")]).error == (
        "could not read a.json, c.json: Permission denied, b.json: it ends early"
    )


def test_a_report_on_nothing_is_no_pass() -> None:
    report = run_rules(Played(), [made("A001", "elsewhere")])
    assert report.error == "no selected rule looked at this target"
    assert report.verdict == "incomplete"


def test_a_problem_may_be_graver_than_its_rule_and_the_settings_win() -> None:
    @rule("PLY001", "played", severity="warning", on="played")
    def check(evidence: Played) -> Iterator[Problem]:
        yield Problem("perhaps")
        yield Problem("for certain", severity="error")

    def severities(**chosen: Any) -> list[tuple[str, str]]:
        report = run_rules(Played(), [check], **chosen)
        return [(finding.message, finding.severity) for finding in report.findings]

    assert severities() == [("for certain", "error"), ("perhaps", "warning")]
    assert severities(severities={"PLY001": "info"}) == [("perhaps", "info"), ("for certain", "info")]


def test_rules_that_damage_kept_from_looking_have_not_passed(tmp_path: Path) -> None:
    """IDX001 names the missing shard. Where it is not selected, nothing does."""
    folder = Path(shutil.copytree(FIXTURES / "checkpoints" / "tiny-llama-sharded", tmp_path / "model"))
    (folder / "model-00002-of-00003.safetensors").unlink()
    report = ckptcheck.scan(folder, select=["CFG00"])
    assert (report.verdict, report.exit_code()) == ("incomplete", 2)
    assert report.error == "needs every tensor, but model-00002-of-00003.safetensors could not be read"
    assert ckptcheck.scan(folder).verdict == "findings"
    assert ckptcheck.scan(folder, ignore=["IDX001"]).verdict == "clean"


@pytest.mark.parametrize(
    ("asked", "options", "verdict", "outcome"),
    [
        ((), {"outcome": Skip("no kernel")}, "clean", ("skipped", "no kernel")),
        (("ABC001",), {"outcome": Skip("no kernel")}, "incomplete", ("crashed", "no kernel")),
        (("ABC001",), {"when": lambda _: False}, "clean", ("skipped", "it does not apply to this target")),
        (("ABC001",), {"on": "absent"}, "clean", ("skipped", "it does not apply to this target")),
    ],
)
def test_a_rule_that_was_asked_for_is_never_silent(
    asked: tuple[str, ...], options: dict[str, Any], verdict: str, outcome: tuple[str, str]
) -> None:
    report = run_rules(Played(), [made("ABC001", **options), made("ABC002")], asked=asked)
    assert (report.verdict, report.passed) == (verdict, ("ABC002",))
    assert getattr(report, outcome[0]) == (("ABC001", outcome[1]),)
    ignored = run_rules(Played(), [made("ABC001", **options), made("ABC002")], asked=asked, ignored={"ABC001": "ours"})
    assert ignored.verdict == "clean"


def test_equal_reports_may_differ_in_what_is_shown_beside_them() -> None:
    report = Report("a", passed=("IDX001",))
    beside: dict[str, Any] = {
        "unread": ("f",),
        "headline": "h",
        "next_step": "n",
        "parts": ("p",),
        "pictures": (None,),
        "rules": (None,),
    }
    beside |= {"fail_on": "info"}
    for name, value in beside.items():
        other = structs.replace(report, **{name: value})
        assert (other == report, other != report) == (True, False), name
    others = set(report.__struct_fields__) - beside.keys()
    for name in others:
        other = structs.replace(report, **{name: "another"})
        assert (other == report, other != report) == (False, True), name
    assert report != "a"
