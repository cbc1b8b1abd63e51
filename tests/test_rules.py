"""Every case of every rule, and the hygiene of the pack."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tomllib
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.deltas.chain import DeltaChain
from ckptcheck.checkpoint.megatron.megatron import DcpCheckpoint, Megatron
from ckptcheck.checkpoint.open import open_checkpoint, open_target
from ckptcheck.checkpoint.scan_options import ScanOptions
from ckptcheck.checkpoint.views import (
    ConfiguredCheckpoint,
    IndexedCheckpoint,
    LayeredCheckpoint,
    QuantizedCheckpoint,
    TokenizedCheckpoint,
)
from ckptcheck.compare import manifest
from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.signatures.signature_check import SignatureCheck
from ckptcheck.compare.verification import Verification, verify_manifest
from ckptcheck.jobs.job import Job
from ckptcheck.linter import rule_loader
from ckptcheck.linter.evidence import Evidence
from ckptcheck.linter.rule import Rule
from ckptcheck.linter.rule_index import describe_rule
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.conformance.trace import ConformanceTrace
from ckptcheck.live.experiments.attribution.search import Attribution
from ckptcheck.live.experiments.critic import CriticComparison
from ckptcheck.live.experiments.matrix.trace import MatrixTrace
from ckptcheck.live.experiments.probes.trace import ProbeTrace
from ckptcheck.live.localize.localization import Localization
from ckptcheck.live.refit.lora.trace import LoraTrace
from ckptcheck.live.refit.running_servers.trace import ServerEvidence
from ckptcheck.live.refit.trace import RefitTrace
from ckptcheck.live.runtime.engines.known_issues import EngineIdentity
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.run_comparison import RunComparison
from ckptcheck.rollouts.series import RolloutSeries
from ckptcheck.runs.history.history import History
from ckptcheck.runs.saves.save_series import SaveSeries
from ckptcheck.values.value_pass import ValuePass
from ckptcheck.verbs.rules import markdown_table
from tests.factories.attached_servers import build_servers
from tests.factories.attribution_cases import build_attribution
from tests.factories.case_table import CaseTable
from tests.factories.checkpoint_cases import (
    CHECKPOINTS,
    MEGATRON,
    ROOT,
    Case,
    build_checkpoint,
    format_finding,
    load_cases,
)
from tests.factories.comparison_cases import build_comparison
from tests.factories.conformance_cases import build_conformance
from tests.factories.critic_cases import build_critic
from tests.factories.delta_cases import build_delta_case
from tests.factories.history_cases import build_history
from tests.factories.job_cases import read_job
from tests.factories.localize_cases import build_localization
from tests.factories.lora_cases import run_lora_case
from tests.factories.parity_matrix_cases import build_matrix
from tests.factories.probe_cases import run_probe_case
from tests.factories.refit_cases import run_trial_case
from tests.factories.rollout_cases import build_rollout_evidence, build_rollout_series, build_run_comparison
from tests.factories.series_cases import build_series
from tests.factories.signatures import build_signature_check

RULES = rule_loader.load_rules()
CASES = list(load_cases())
BUILDERS: dict[str, Callable[[Mapping[str, Any], Path], Evidence]] = {
    "refit": run_trial_case,
    "lora": run_lora_case,
    "job": read_job,
    "servers": lambda table, _: build_servers(table),
    "engines": lambda table, folder: build_servers(table) if "servers" in table else run_trial_case(table, folder),
    "history": lambda table, folder: build_history(table, folder / "syncs.jsonl"),
    "columns": build_rollout_evidence,
    "rollouts": build_rollout_evidence,
    "rollout-series": lambda table, _: build_rollout_series(table),
    "rollout-runs": lambda table, _: build_run_comparison(table),
    "matrix": lambda table, _: build_matrix(table),
    "probe": run_probe_case,
    "comparison": build_comparison,
    "attribution": lambda table, _: build_attribution(table),
    "localization": lambda table, _: build_localization(table),
    "critic": lambda table, _: build_critic(table),
    "conformance": lambda table, _: build_conformance(table),
    "signature": build_signature_check,
    "deltas": build_delta_case,
    "saves": lambda table, _: build_series(table),
}
"""What a rule looks at, where that is no checkpoint: how a case's table becomes evidence."""
SCANNED = {
    "checkpoint": Checkpoint,
    "index": IndexedCheckpoint,
    "config": ConfiguredCheckpoint,
    "layers": LayeredCheckpoint,
    "tokenizer": TokenizedCheckpoint,
    "quantization": QuantizedCheckpoint,
    "values": Checkpoint,
    "megatron": Megatron,
    "dcp": DcpCheckpoint,
    "manifest": Verification,
}
"""What a rule looks at → what its check receives, where a case's checkpoint is scanned."""
EVIDENCE = SCANNED | {
    "refit": RefitTrace,
    "lora": LoraTrace,
    "job": Job,
    "servers": ServerEvidence,
    "engines": tuple[EngineIdentity, ...],
    "history": History,
    "columns": RolloutEvidence,
    "rollouts": RolloutEvidence,
    "rollout-series": RolloutSeries,
    "rollout-runs": RunComparison,
    "matrix": MatrixTrace,
    "probe": ProbeTrace,
    "comparison": Comparison,
    "attribution": Attribution,
    "localization": Localization,
    "critic": CriticComparison,
    "conformance": ConformanceTrace,
    "signature": SignatureCheck,
    "deltas": Sequence[DeltaChain],
    "saves": SaveSeries,
}
"""What a rule looks at → what its check receives."""
SECTIONS = ["What it checks", "Why it matters", "How to fix", "When it can be wrong", "Seen in"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, tmp_path: Path) -> None:
    if "python" in case.table:
        msgspec.convert(case.table, CaseTable)
        file, _, name = case.table["python"].partition("::")
        assert f"\ndef {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), "there is no such test"
        return
    report = run_rules(_build_evidence(case, tmp_path), [case.rule])
    assert not report.crashed
    assert [format_finding(finding) for finding in report.findings] == case.table.get("expect", [])
    assert [reason for _, reason in report.skipped] == ([case.table["skip"]] if "skip" in case.table else [])
    for finding in report.findings:
        assert finding.hint or finding.severity == "info", (
            "a reader of an error or a warning needs a next step: Problem(hint=…)"
        )
        counted = 0 if case.rule.code in COUNTS_OTHERS else count_names(finding.message)
        assert len(finding.names) >= counted, (
            "a program gets fewer names than the message counts: give Problem(names=…)"
        )


COUNTED = re.compile(
    r"(?<![\w.,/-])(\d[\d,]*)(?: of (?:its |the )?[\d,]+)? (?:[a-z]+ )?(?:norms|tensors|matrices|weights|modules|files|shards)\b"
)
"""A number of what has a name. In "2 of 3 tensors" the first number counts."""
FURTHER = re.compile(
    r"(\d[\d,]*) more (?:like|tensor|matri|module|file|shard|weight|are\b)|and ([\d,]+) more(?! dimension| such)"
)
"""A number of those beside the one that has its name in the message."""
COUNTS_OTHERS = {
    "CMP011": "the matrices that did change",
    "IDX001": "the shards that are there; of a lost one the tensors are named",
    "PAR040": "the first and last files of a series",
    "QNT030": "those that are usual",
    "REF012": "all weights, which were compared",
    "REF057": "the tensors of a transport under test",
    "REF054": "the slots of the tensor that it names",
    "SER004": "the tensors of the file that it names",
}
"""Rule → what its messages count that it does not complain of."""


def count_names(message: str) -> int:
    """Return how many names a message counts.

    >>> count_names("2 of its 30 tensors are zero"), count_names("a.weight and 4 more are stored"), count_names("a is zero")
    (2, 5, 0)
    """
    numbers = [int(found[1].replace(",", "")) for found in COUNTED.finditer(message)]
    further = [int((found[1] or found[2]).replace(",", "")) + 1 for found in FURTHER.finditer(message)]
    return max((number for number in (*numbers, *further) if number > 1), default=0)


def _build_evidence(case: Case, folder: Path) -> Evidence:
    if case.rule.on in BUILDERS:
        return BUILDERS[case.rule.on](case.table, folder)
    path = build_checkpoint(case.table, folder / "ckpt")
    arguments = dict(case.table.get("options", {}))
    if "base" in arguments:
        arguments["base"] = str(CHECKPOINTS / arguments["base"])
    options = ScanOptions(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()}
    )
    ckpt = open_target(str(path), options=options, value_reader=ValuePass())
    if case.rule.on != "manifest":
        return ckpt
    assert isinstance(ckpt, Checkpoint)
    # The manifest is taken of the base, as it was before anything was done to it.
    recorded = manifest.build_manifest(open_checkpoint(str(CHECKPOINTS / case.table["base"])))
    return verify_manifest(ckpt, recorded)


def _find_one_case_of_each_schema() -> list[Case]:
    """Return a case of each kind of evidence, of each of the two kinds of cases about engines, and one that is a test."""
    schemas = {"python" if "python" in case.table else (case.rule.on, "servers" in case.table): case for case in CASES}
    return list(schemas.values())


@pytest.mark.parametrize("case", _find_one_case_of_each_schema(), ids=lambda case: f"{case.rule.on}-{case}")
def test_a_misspelt_key_of_a_case_is_refused(case: Case, tmp_path: Path) -> None:
    """Else a sound case with a misspelt key would pass, because nothing happens to it."""
    misspelt = replace(case, table={**case.table, "tittle": "text"})
    with pytest.raises(msgspec.ValidationError, match="unknown field `tittle`"):
        test_case(misspelt, tmp_path)


def test_there_are_cases_about_every_kind_of_evidence() -> None:
    assert {case.rule.on for case in CASES} == EVIDENCE.keys() == SCANNED.keys() | BUILDERS.keys()


CHECKPOINT = {"base": "tiny-llama"}


@pytest.mark.parametrize(
    ("on", "table"),
    [
        ("attribution", {"effects": [{"undone_by": "heat", "size": 0.1, "shares": 0.5}]}),
        ("attribution", {"effects": [{"undone_by": "heet", "size": 0.1}]}),
        ("comparison", CHECKPOINT | {"diff": {"rtoll": 0.1}}),
        ("comparison", CHECKPOINT | {"options": {"verify_blobs": True}}),
        ("history", {"syncs": [{"stail": ["*"]}]}),
        ("localization", {"do": [{"point": "lm_head", "how": "factor", "bye": 2.0}]}),
        ("rollouts", {"changes": [{"column": "engine_logprobs", "adds": 1}]}),
        ("refit", {"faults": [{"kind": "droped"}]}),
        ("servers", {"servers": [{"difers": ["model.norm.weight"]}]}),
        ("servers", {"servers": [{"written": {"lefts": ["model.norm.weight"]}}]}),
        ("servers", {"servers": [{}], "trainer": {"of": 0.5}}),
        ("checkpoint", CHECKPOINT | {"tensors": {"model.safetensors": {"x": {"dtype": "F32", "shapes": [1]}}}}),
        ("checkpoint", CHECKPOINT | {"values": {"model.norm.weight": [{"zeroes": 1}]}}),
        ("checkpoint", CHECKPOINT | {"faults": [{"kind": "dropped"}]}),
        ("megatron", {"base": "dense", "contents": {"dropp": ["x"]}}),
        ("megatron", {"base": "dense", "elements": {"output_layer.weight": [{"zeroes": 1}]}}),
    ],
)
def test_a_misspelt_word_inside_a_case_is_refused(on: str, table: dict[str, Any], tmp_path: Path) -> None:
    rule = next(rule for rule in RULES if rule.on == on)
    with pytest.raises(msgspec.ValidationError):
        _build_evidence(Case(rule, "ok", 0, table), tmp_path)


def open_with_values(path: Path) -> Checkpoint | Megatron:
    return open_target(str(path), value_reader=ValuePass())


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
    assert describe_rule(ROOT / "rules", rule.path), (
        "the decorator needs code, name, severity=, on=, when= in this order"
    )
    path = rule.path.with_suffix(".toml")
    assert path.is_file(), f"{rule.code} has no cases: write them to {path.relative_to(ROOT)} (docs/adding-a-rule.md)"
    cases = tomllib.loads(path.read_text(encoding="utf-8"))
    assert cases.keys() == {"bad", "ok"}
    assert len(cases["ok"]) >= min(len(cases["bad"]), 4) >= 1


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_check_is_annotated_with_what_it_receives(rule: Rule) -> None:
    """`on` is text, so that no type checker sees what a check receives."""
    assert rule.path is not None
    check = rule_loader.load_rule_file(rule.path).check
    parameter = next(iter(inspect.signature(check).parameters))
    assert typing.get_type_hints(check).get(parameter) == EVIDENCE[rule.on]


def test_no_case_file_without_a_rule() -> None:
    named = {rule.path.with_suffix(".toml") for rule in RULES if rule.path}
    assert set((ROOT / "rules").rglob("*.toml")) == named


@pytest.mark.parametrize("base", sorted(path.name for path in (ROOT / "fixtures/checkpoints").iterdir()))
def test_the_bases_are_sound(base: str) -> None:
    report = run_rules(open_checkpoint(str(ROOT / "fixtures/checkpoints" / base), value_reader=ValuePass()), RULES)
    assert [format_finding(finding) for finding in report.findings] == []
    assert report.verdict == "clean"


@pytest.mark.parametrize("base", sorted(path.name for path in MEGATRON.iterdir()))
def test_the_megatron_bases_are_sound(base: str) -> None:
    report = run_rules(open_with_values(MEGATRON / base), RULES)
    assert [format_finding(finding) for finding in report.findings] == []
    assert report.verdict == "clean"


def test_the_table_of_rules_is_up_to_date() -> None:
    written = (ROOT / "rules/README.md").read_text(encoding="utf-8")
    assert written == markdown_table(RULES), "ckptcheck rules --format markdown > rules/README.md"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_is_announced_as_it_is(rule: Rule) -> None:
    """The file of a built-in rule is run only when the rule looks; until then the text of the file speaks for it."""
    assert rule.path is not None
    loaded = rule_loader.load_rule_file(rule.path)
    told = (rule.code, rule.name, rule.severity, rule.on, rule.explanation, rule.when is None)
    assert told == (
        *(loaded.code, loaded.name, loaded.severity, loaded.on, loaded.explanation),
        loaded.when is None,
    )


def test_a_scan_runs_no_file_of_a_rule_that_has_nothing_to_look_at() -> None:
    program = (
        "import sys; from ckptcheck.linter.rule_loader import load_rules; from ckptcheck.linter.runner import run_rules\n"
        "from ckptcheck.checkpoint.open import open_checkpoint\n"
        f"run_rules(open_checkpoint({str(CHECKPOINTS / 'tiny-llama')!r}), load_rules())\n"
        "print(*(name for name in sys.modules if name.startswith('ckptcheck_rule_')))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    families = {name.removeprefix("ckptcheck_rule_")[:3] for name in ran}
    assert "idx" in families
    assert not families & {"ref", "par", "prb", "job", "meg", "his", "att", "loc", "cmp"}
