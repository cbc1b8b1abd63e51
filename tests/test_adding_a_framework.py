"""docs/adding-a-framework.md is a door: the folder that it writes works, and no other file is touched."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ckptcheck.framework_folders import list_frameworks_with, load_framework_file
from ckptcheck.jobs.open_job import list_frameworks
from ckptcheck.rollouts.convert import list_formats
from ckptcheck.watch import adapters
from tests.paths import ROOT

PAGE = (ROOT / "docs/adding-a-framework.md").read_text(encoding="utf-8")
SAMPLE = '{"tiny_prompt": [1, 2], "tiny_response": [3, 4], "sampled": [-0.5, -0.25], "learned": [-0.5, -0.25]}\n'


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the page's folder in it."""
    place = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "ckptcheck", place / "ckptcheck", ignore=shutil.ignore_patterns("__pycache__"))
    (place / "rules").symlink_to(ROOT / "rules")
    blocks = re.findall(r"^```python\n# (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    for file, code in blocks:
        path = place / file
        assert not path.exists()
        path.parent.mkdir(exist_ok=True)
        path.write_text(code, encoding="utf-8")
    return place


def run(package: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    folder = package / "work"
    folder.mkdir(exist_ok=True)
    (folder / "job.yaml").write_text(PAGE.partition("$ cat job.yaml\n")[2].partition("$ ")[0], encoding="utf-8")
    (folder / "samples.jsonl").write_text(SAMPLE, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "ckptcheck", *arguments], cwd=folder, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(package), "COLUMNS": "200"},
    )  # fmt: skip


def test_a_job_of_it_is_recognised_and_judged(package: Path) -> None:
    done = run(package, "preflight", "job.yaml", "--no-scan")
    assert done.returncode == 1, done.stderr
    assert "TinyRL · vllm" in done.stdout
    assert (
        "the trainer computes logprobs at temperature 1 (job.yaml:3), and rollouts are sampled at 0.7 (job.yaml:2)"
        in done.stdout
    )
    assert "sampler.temprature is no known key: did you mean temperature?" in done.stdout


@pytest.mark.parametrize("source", [("--from", "tinyrl"), ()])
def test_its_rollouts_are_converted(package: Path, source: tuple[str, ...]) -> None:
    done = run(package, "parity", "convert", "samples.jsonl", *source, "-o", f"{len(source)}.safetensors")
    assert done.returncode == 0, done.stderr
    assert (package / "work" / f"{len(source)}.safetensors").is_file()


@pytest.mark.parametrize("command", [("preflight",), ("parity", "convert")])
def test_the_help_names_it(package: Path, command: tuple[str, ...]) -> None:
    assert "tinyrl" in run(package, *command, "--help").stdout


def test_a_framework_that_is_not_there_is_refused_with_those_that_are(package: Path) -> None:
    done = run(package, "preflight", "job.yaml", "--framework", "tinyrr")
    assert done.returncode == 2
    assert "tinyrl" in done.stderr


def test_the_guides_have_a_row_for_every_framework_and_format() -> None:
    jobs, rollouts, watch = (
        (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in ("preflight", "rollouts", "watch")
    )
    assert [
        each.title for each in list_frameworks().values() if not re.search(rf"^\| .*{each.title}", jobs, re.MULTILINE)
    ] == []
    assert [name for name in list_formats() if not re.search(rf"^\| `{name}` \|", rollouts, re.MULTILINE)] == []
    assert [name for name in adapters.__all__ if f"adapters.{name}(" not in watch] == []


def test_no_two_folders_have_one_name() -> None:
    """The later one would take the place of the earlier one without a word."""
    assert len(list_frameworks_with("preflight")) == len(list_frameworks())
    formats = [
        each for name in list_frameworks_with("rollouts") for each in load_framework_file(name, "rollouts").FORMATS
    ]
    assert len(formats) == len(list_formats())
