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

from tests.factories.checkpoint_cases import CHECKPOINTS, ROOT
from tests.fuzzing.doors import DOORS

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


def run_action(folder: Path, **inputs: str) -> tuple[int, dict[str, str]]:
    """Run the scripts of the action as a runner does, without its uploads; return the exit code and the outputs."""
    action = _read(ACTION)
    values = {name: str(each.get("default", "")) for name, each in action["inputs"].items()} | {
        name.replace("_", "-"): value for name, value in inputs.items()
    }
    assert values.keys() == action["inputs"].keys()
    program = folder / "temp/ckptcheck/bin/ckptcheck"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m ckptcheck "$@"\n', encoding="utf-8")
    program.chmod(0o755)
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


def test_the_action_checks_and_writes_both_reports(tmp_path: Path) -> None:
    shutil.copytree(CHECKPOINTS / "tiny-llama", tmp_path / "my model")
    assert run_action(tmp_path, target="my model") == (
        0,
        {"exit-code": "0", "report": "ckptcheck-report/report.sarif"},
    )
    assert json.loads((tmp_path / "ckptcheck-report/report.sarif").read_text())["version"] == "2.1.0"
    assert "<html" in (tmp_path / "ckptcheck-report/report.html").read_text(encoding="utf-8")


def test_the_action_fails_with_the_exit_code_of_the_check(tmp_path: Path) -> None:
    target = f"{tmp_path}/nothing; touch broken"
    code, outputs = run_action(tmp_path, target=target, format="json", html="false", arguments="--headers-only\n")
    assert (code, outputs["exit-code"]) == (2, "2")
    assert json.loads((tmp_path / outputs["report"]).read_text())["verdict"] == "incomplete"
    assert sorted(path.name for path in (tmp_path / "ckptcheck-report").iterdir()) == ["report.json"]
    assert not (tmp_path / "broken").exists()


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
