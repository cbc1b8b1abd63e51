"""Every known issue is found in a job made of it, and in none of that job's sound twins: another version, another value."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from ckptcheck.jobs.engine_flags import known_arguments
from ckptcheck.jobs.fields import FIELDS
from ckptcheck.jobs.issue import Issue, Wanted
from ckptcheck.jobs.job import Job
from ckptcheck.jobs.key_names import find_unknown_part, load_key_names
from ckptcheck.jobs.key_table import load_key_table
from ckptcheck.jobs.known_issues import COMPARISON, UNWRITTEN, load_issues, matches
from ckptcheck.jobs.open_job import list_frameworks, open_job
from ckptcheck.jobs.transformers_flags import ACCELERATE_FLAGS, TRAINING_ARGUMENTS
from tests.paths import ROOT

FOLDERS = ROOT / "ckptcheck/frameworks"
NAMES = sorted(file.parent.name.replace("_", "-") for file in FOLDERS.glob("*/known_issues.toml"))
OF_SCRIPTS = {"gpu.shares", "gpu.of_both"}
"""Settings that only several commands of a script make; the cases of JOB060 have them."""
ISSUES = [
    pytest.param(name, issue, id=f"{name}-{issue.source}")
    for name in NAMES
    for issue in load_issues(name)
    if OF_SCRIPTS.isdisjoint(issue.when)
]
SOURCE = re.compile(r"[\w.-]+/[\w.-]+(#\d+|@[0-9a-f]{7,12}| \d+(\.\d+)+)")
ENGINES = ("vllm", "sglang")
FORKS = {"miles": {"custom_rollout_log_function_path": "miles.rollout"}}
"""Fork → a key by which its jobs are recognised."""
UNLISTED = (
    TRAINING_ARGUMENTS
    | ACCELERATE_FLAGS
    | {
        "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype",
        "accelerate_config",
        "train.gpus",
        "rollout.gpus",
    }
)
"""Keys that the tables of keys leave out: those of transformers and accelerate, one that verl's configuration has as
null, and those of ms-swift's groups of Ray."""
OTHERS: tuple[Wanted, ...] = (False, True, 1, 2, 64, "other", 0.5, 0)


def read(name: str, keys: Mapping[str, Wanted | None], version: str, folder: Path) -> Job:
    """Read a job with these keys; None leaves a key out. version: of the framework or the engine."""
    path = folder / "job.yaml"
    written = {key: value for key, value in keys.items() if value is not None and not key.startswith("$")}
    nested: dict[str, object] = {}
    for key, value in {**FORKS.get(name, {}), **written}.items():
        level = nested
        *sections, last = key.split(".")
        for section in sections:
            level = level.setdefault(section, {})  # type: ignore[assignment]
        level[last] = value
    path.write_text(yaml.safe_dump(nested or {"x": 1}), encoding="utf-8")
    environment = {key[1:]: str(value) for key, value in keys.items() if key.startswith("$") and value is not None}
    reader = list_frameworks()["slime" if name in FORKS else name]
    told = {"engine_version" if reader.is_engine else "framework_version": version} if version else {}
    return open_job([str(path)], framework=reader.name, environment=environment, scan=False, **told)  # type: ignore[arg-type]


def make_value(wanted: Wanted) -> Wanted | None:
    """Return a value that meets a pattern; None to leave the key out."""
    if wanted == UNWRITTEN:
        return None
    if isinstance(wanted, str) and (match := COMPARISON.fullmatch(wanted)):
        sign, other = match.groups()
        return "another" if sign == "!=" else float(other) + {"<": -1, ">": 1}.get(sign, 0)
    return wanted.replace("*", "x") if isinstance(wanted, str) else wanted


def make_keys(issue: Issue) -> dict[str, Wanted | None]:
    """Return the keys of a job with an issue."""
    firsts = {key: wanted[0] if isinstance(wanted, tuple) else wanted for key, wanted in issue.when.items()}
    made = {key.partition("|")[0]: make_value(wanted) for key, wanted in firsts.items() if key not in FIELDS}
    return {**made, **issue.example}


def is_met(job: Job, issue: Issue) -> bool:
    return any(met.issue == issue and not met.unsure for met in job.issues)


def find_versions(issue: Issue, *, is_engine: bool) -> tuple[str, str]:
    """Return (a version with an issue, one that mends it or ""). An engine's are releases."""
    begin, end = issue.span
    if is_engine:
        return begin.release if begin else "0.1.0", end.release if end else ""
    return begin.date.isoformat() if begin else "2020-01-01", end.date.isoformat() if end else ""


@pytest.mark.parametrize(("name", "issue"), ISSUES)
def test_an_issue_is_found_in_its_job_and_not_in_the_sound_twins(name: str, issue: Issue, tmp_path: Path) -> None:
    with_it, without = find_versions(issue, is_engine=name in ENGINES)
    keys = make_keys(issue)
    assert is_met(read(name, keys, with_it, tmp_path), issue)
    if without or (name in ENGINES and issue.since):
        assert any(met.unsure for met in read(name, keys, "", tmp_path).issues if met.issue == issue), (
            "it may be another"
        )
    if without:
        assert not is_met(read(name, keys, without, tmp_path), issue), "a version that mends it"
        assert any(met.unsure for met in read(name, keys, "", tmp_path).issues if met.issue == issue), (
            "it may be another"
        )
    for key, wanted in issue.when.items():
        if key in FIELDS:
            continue
        patterns = wanted if isinstance(wanted, tuple) else (wanted,)
        excluded = [match[2] for each in patterns if (match := COMPARISON.fullmatch(str(each)))]
        other = next(each for each in (*OTHERS, *excluded, None) if not matches(each, wanted))
        twin = {**keys, key.partition("|")[0]: other}
        assert not is_met(read(name, twin, with_it, tmp_path), issue), f"{key} is {other}"
    if issue.whole:
        defaults = {
            key.partition("|")[0]: default for key, default in {**issue.whole, **issue.part, **issue.among}.items()
        }
        sizes = {key: int(issue.example.get(key, default)) or 1 for key, default in defaults.items()}
        first, *others = (key.partition("|")[0] for key in issue.part)
        whole = math.prod(sizes[key.partition("|")[0]] for key in issue.whole)
        if first in FIELDS:
            first, fitting = next(iter(issue.whole)), 720_720
        elif issue.fits == "sum at most":
            fitting = whole - sum(sizes[key] for key in others)
        else:
            fitting = whole // math.prod(sizes[key] for key in (*others, *issue.among))
        assert not is_met(read(name, {**keys, first: fitting}, with_it, tmp_path), issue), f"{first} is {fitting}"
    if issue.fits == "shares":
        for key in issue.part:
            assert not is_met(read(name, {**keys, key: 0.05}, with_it, tmp_path), issue), f"{key} is 0.05"
    for key in issue.example if any(key in FIELDS for key in issue.when) and not issue.whole else ():
        twins = [{**keys, key: other} for other in (None, "megatron")]
        assert not all(is_met(read(name, twin, with_it, tmp_path), issue) for twin in twins), f"another {key}"


@pytest.mark.parametrize(("name", "issue"), ISSUES)
def test_an_issue_is_written_as_the_others(name: str, issue: Issue) -> None:
    assert SOURCE.fullmatch(issue.source), issue.source
    assert not issue.says.endswith(".")
    assert issue.until or issue.hint, "an issue that no version mends says what helps"
    begin, end = issue.span
    assert begin is None or end is None or begin.date < end.date
    assert name in ENGINES or not (isinstance(issue.since, str) or isinstance(issue.until, str))
    written = [
        each
        for key in (*issue.when, *issue.whole, *issue.part, *issue.among, *issue.example)
        if key not in FIELDS
        for each in key.split("|")
    ]
    folder, names = name.replace("-", "_"), load_key_names(name)
    tables = [load_key_table(file) for file in (FOLDERS / folder).glob("*keys.json")]
    for key in written:
        if key.startswith(("$", "server.")) or key in UNLISTED:
            continue
        if name in ENGINES:
            assert key.partition(".")[0] in frozenset.union(*known_arguments(name)), key
        elif names is not None:
            assert find_unknown_part(key, names.names) is None, key
        elif tables:
            assert any(table.has(key) for table in tables), key


def test_there_are_enough_to_be_worth_a_table() -> None:
    assert len(ISSUES) >= 100
