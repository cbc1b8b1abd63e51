"""The files around the code that other programs read: workflows, the action, hooks, forms."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.fuzzing.doors import DOORS
from tests.paths import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
ACTION = ROOT / "action.yml"


def _find_program(name: str) -> str:
    path = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if path is None:
        pytest.skip(f"needs {name}")
    return path


def _read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_actionlint_accepts_the_workflows() -> None:
    result = subprocess.run(
        [_find_program("actionlint"), *map(str, WORKFLOWS)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(("schema", "files"), [("github-workflows", WORKFLOWS), ("github-actions", [ACTION])])
def test_their_schemas_accept_them(schema: str, files: list[Path]) -> None:
    result = subprocess.run(
        [_find_program("check-jsonschema"), "--builtin-schema", f"vendor.{schema}", *map(str, files)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_target_of_make_that_a_workflow_runs_is_there(path: Path) -> None:
    rules = re.findall(r"^([\w -]+):(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    targets = {target for rule in rules for target in rule.split()}
    steps = [step for job in _read(path)["jobs"].values() for step in job.get("steps", ())]
    for step in steps:
        for command in re.findall(r"^make (.+)$", step.get("run", ""), re.MULTILINE):
            command = re.sub(r"\w+=(\$\{\{.+?\}\}|\S+)", "", command)
            assert set(command.split()) <= targets


@pytest.mark.parametrize("path", [*WORKFLOWS, ACTION], ids=lambda path: path.name)
def test_no_expression_is_pasted_into_a_script(path: Path) -> None:
    """What a stranger chose (a branch, an input) reaches a script as a variable, not as its text."""
    page = _read(path)
    steps = (
        page["runs"]["steps"] if path == ACTION else [s for job in page["jobs"].values() for s in job.get("steps", ())]
    )
    for step in steps:
        for expression in re.findall(r"\$\{\{ *([\w.-]+)", step.get("run", "")):
            assert expression.split(".")[0] == "matrix" or expression == "github.run_number"


@pytest.mark.parametrize("path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.name)
def test_a_form_asks_something(path: Path) -> None:
    form = _read(path)
    if path.name != "config.yml":
        assert {"name", "description", "body"} <= form.keys()
        assert len({field["id"] for field in form["body"]}) == len(form["body"])


RUN = f'PYTHONPATH="{ROOT}" exec "{sys.executable}" -m ckptcheck "$@"'


def write_program(path: Path, script: str) -> None:
    """Write a program that stands for one that is installed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def run_action(folder: Path, **inputs: str) -> tuple[int, dict[str, str]]:
    """Run the scripts of the action as a runner does, without its uploads; return the exit code and the outputs."""
    action = _read(ACTION)
    values = {name: str(each.get("default", "")) for name, each in action["inputs"].items()} | {
        name.replace("_", "-"): value for name, value in inputs.items()
    }
    assert values.keys() == action["inputs"].keys()
    write_program(folder / "temp/ckptcheck/bin/ckptcheck", RUN)
    files = {"GITHUB_OUTPUT": folder / "output", "GITHUB_STEP_SUMMARY": folder / "summary"}
    outputs: dict[str, str] = {}

    def replace(match: re.Match[str]) -> str:
        name = match[1]
        return values[name[7:]] if name.startswith("inputs.") else outputs[name.removeprefix("steps.check.outputs.")]

    code = 0
    for step in action["runs"]["steps"]:
        if "run" not in step or step["name"] == "Install ckptcheck":  # the program above stands for what pip installs
            continue
        environment = {
            name: re.sub(r"\$\{\{ ([\w.-]+) \}\}", replace, text) for name, text in step.get("env", {}).items()
        }
        code = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=folder,
            env={
                **os.environ,
                "RUNNER_TEMP": str(folder / "temp"),
                **{k: str(v) for k, v in files.items()},
                **environment,
            },
            check=False,
        ).returncode
        if files["GITHUB_OUTPUT"].exists():
            outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
    return code, outputs


def test_the_action_checks_once_and_shows_the_findings(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", tmp_path / "my model")
    (tmp_path / "my model/model-00002-of-00003.safetensors").unlink()
    formats = {"html": "<html", "sarif": '"2.1.0"', "github": "::error file="}
    code, outputs = run_action(tmp_path, target="my model", formats=" ".join(formats))
    assert (code, outputs) == (1, {"exit-code": "1", "reports": "ckptcheck-report"})
    for format, beginning in formats.items():
        assert beginning in (tmp_path / f"ckptcheck-report/report.{format}").read_text(encoding="utf-8")
    log = capfd.readouterr()
    assert "→ fetch model-00002-of-00003.safetensors again" in log.err
    assert log.err.count("the report is ckptcheck-report/report.md, ckptcheck-report/report.html") == 1, "one run"
    assert "::error file=my model/model.safetensors.index.json" in log.out
    summary = (tmp_path / "summary").read_text(encoding="utf-8")
    assert summary.startswith("### my model\n\n✗ 1 error · ")
    assert "| error | IDX001 missing-shard | **model.safetensors.index.json weight" in summary


def test_the_action_fails_with_the_exit_code_of_the_check(tmp_path: Path) -> None:
    target = f"{tmp_path}/nothing; touch broken"
    code, outputs = run_action(tmp_path, target=target, formats="json", arguments="--headers-only\n")
    assert (code, outputs["exit-code"]) == (2, "2")
    assert json.loads((tmp_path / "ckptcheck-report/report.json").read_text())["verdict"] == "incomplete"
    assert sorted(path.name for path in (tmp_path / "ckptcheck-report").iterdir()) == ["report.json", "report.md"]
    assert "does not exist" in (tmp_path / "summary").read_text(encoding="utf-8")
    assert not (tmp_path / "broken").exists()
    code, _ = run_action(tmp_path, target="x", arguments="--no-such-option")
    assert code == 2
    assert (tmp_path / "summary").read_text(encoding="utf-8").endswith("\nckptcheck scan: exit code 2\n")


@pytest.mark.parametrize("service", ["GitLab", "Buildkite"])
def test_the_steps_of_other_services_run(tmp_path: Path, service: str) -> None:
    """The lines of docs/ci.md, with what pip installs and the service's own program replaced."""
    page = (ROOT / "docs/ci.md").read_text(encoding="utf-8").partition(f"### {service}\n")[2]
    job = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    lines = job["checkpoint"]["script"] if service == "GitLab" else [job["steps"][0]["command"].replace("$$", "$")]
    shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", tmp_path / "export")
    (tmp_path / "export/model-00002-of-00003.safetensors").unlink()
    programs = {
        "pip": "exit 0",
        "ckptcheck": RUN,
        "buildkite-agent": "cat > annotation",
    }
    for name, script in programs.items():
        write_program(tmp_path / "bin" / name, script)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "-ec", "\n".join(lines)],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1, result.stderr
    assert "model-00002-of-00003.safetensors is missing" in result.stderr
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")
    shown = tmp_path / ("report.xml" if service == "GitLab" else "annotation")
    assert "IDX001 missing-shard" in shown.read_text(encoding="utf-8")


def test_the_hooks_name_commands(tmp_path: Path) -> None:
    from ckptcheck.verbs import VERBS

    hooks = _read(ROOT / ".pre-commit-hooks.yaml")
    assert {hook["entry"].split()[1] for hook in hooks} <= VERBS.keys()
    assert all(re.compile(hook["files"]) for hook in hooks)


def test_each_promise_names_tests_that_are_there() -> None:
    """SECURITY.md is one page, and what it names exists."""
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert len(page) < 6500
    named = re.findall(r"`(tests/[\w/]+\.py)`", page)
    assert [name for name in named if not (ROOT / name).is_file()] == []
    promises = page.partition("## What is promised")[2].partition("## What is given up")[0]
    assert [one for one in promises.split("\n- ")[1:] if "`tests/" not in one] == []
    doors = {
        *re.findall(r"DOOR=(\w+)", page),
        *re.findall(r"`(\w+)`", page.partition("A *door* is")[2].partition("(`tests")[0]),
    }
    assert doors - {*DOORS, "job", "checkpoint"} == set()
