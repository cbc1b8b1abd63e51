"""Whatever a file holds: a job or one sentence, never another exception, and never for long."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs import launch, toml_file, yaml_file
from ckptcheck.jobs.document import Document
from ckptcheck.jobs.open_job import open_job
from ckptcheck.jobs.shell import script as shell_script
from ckptcheck.jobs.shell.script import Word
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from tests.factories.checkpoint_cases import ROOT
from tests.factories.job_cases import read_job as read_job_case

RULES = [rule for rule in rule_loader.load_rules() if rule.on == "job"]
TABLES = [
    (path.stem, table)
    for path in sorted((ROOT / "rules" / "preflight").glob("*.toml"))
    for tables in tomllib.loads(path.read_text(encoding="utf-8")).values()
    for table in tables
    if "base" not in table
]
SIGNS = "abz_09.:-=+~#'\"`$(){}[]<>&|;!*,\\/ \n\t${A}$(()).. - :"
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@QUICK
@given(st.text(alphabet=SIGNS, max_size=120) | st.text(max_size=60))
def test_readers_take_any_text(text: str) -> None:
    for reader in (
        lambda: yaml_file.read(text, "x"),
        lambda: toml_file.read(text, "x"),
        lambda: shell_script.read(text, "x", Path("/x"), follow=lambda word, script: True),
        lambda: yaml_file.parse_scalar(text),
    ):
        try:
            reader()
        except CkptcheckError:
            continue


@QUICK
@given(st.lists(st.text(alphabet=SIGNS, max_size=20), max_size=8))
def test_launch_lines_take_any_words(words: list[str]) -> None:
    document = Document()
    rest = launch.apply_overrides([Word(text, 1) for text in words], document, "x")
    launch.flags(rest, document, "x")


@pytest.mark.parametrize("seed", range(4))
def test_mutated_jobs_are_jobs_or_one_sentence(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    sentences: list[str] = []
    for number in range(60):
        _, table = draw.choice(TABLES)
        changed: dict[str, Any] = table | {"job": mutated(table["job"], draw)}
        changed.pop("overrides", None)
        try:
            found = read_job_case(changed, tmp_path / str(number))
        except CkptcheckError as trouble:
            sentences.append(trouble.message)
            continue
        report = run_rules(found, RULES)
        # what could not be read makes a report incomplete: it is no crash of a rule
        crashes = [(code, why) for code, why in report.crashed if not why.startswith("could not read ")]
        assert not crashes, (crashes, changed["job"])
        assert report.verdict == "incomplete" or not report.crashed
    assert not [sentence for sentence in sentences if "\n" in sentence or not sentence]


def mutated(text: str, draw: random.Random) -> str:
    """Change a few places: values of other kinds, lost and doubled lines, signs."""
    lines = text.split("\n")
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(lines))
        match draw.randrange(5):
            case 0:
                lines[at] = lines[at].partition(":")[0] + draw.choice(
                    [
                        ": null",
                        ": [1, 2]",
                        ": {a: 1}",
                        ": -1",
                        ": 1e999",
                        ": .nan",
                        ": 'x'",
                        ": ${a.b}",
                        ": ???",
                        ": true",
                        ": 0",
                        ":",
                    ]
                )
            case 1:
                del lines[at]
                lines = lines or [""]
            case 2:
                lines.insert(at, draw.choice(lines))
            case 3:
                place = draw.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:place] + draw.choice(SIGNS) + lines[at][place:]
            case _:
                lines[at] = lines[at].replace(
                    draw.choice(["1", "0", "true", "org", "_", " "]), draw.choice(["", "9" * 30, "x", "-"]), 1
                )
    return "\n".join(lines)


@pytest.mark.slow
def test_a_file_of_flags_alone(tmp_path: Path) -> None:
    path = tmp_path / "serve.sh"
    path.write_text("vllm serve " + " ".join(f"--x{n}" for n in range(20_000)), encoding="utf-8")
    found = open_job([str(path)])
    assert len(found.unknown_keys) == 20_000
    assert len(run_rules(found, RULES).findings[-1].message) < 1000


def test_a_name_of_nothing_in_defaults(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    for entry in (
        '""',
        "{a: ''}",
        "[]",
        "null",
        "{}",
        "3",
        "'/'",
        "'..'",
        "'@a'",
        "{'a@': b}",
        "{optional: x}",
    ):
        path.write_text(f"defaults: [{entry}]\nactor_rollout_ref: {{rollout: {{name: vllm}}}}\n", encoding="utf-8")
        assert open_job([str(path)]).framework == "verl"


@pytest.mark.usefixtures("without_clock")
def test_one_budget_for_all_files_of_a_job(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}.yaml").write_text(f"a{number}: {'x' * 50_000}\n", encoding="utf-8")
    (tmp_path / "job.yaml").write_text(
        f"defaults: [{', '.join(f'{number}.yaml' for number in range(30))}]\npolicy: {{}}\n"
    )
    with pytest.raises(CkptcheckError, match="steps of work"):
        open_job([str(tmp_path / "job.yaml")])
