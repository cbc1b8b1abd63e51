"""What is published: the wheel and the sdist, not the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from ckptcheck.linter import rule_loader
from tests.factories.checkpoint_cases import CHECKPOINTS, ROOT


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(out)], cwd=ROOT, check=True, capture_output=True
    )
    return out


def test_the_wheel_works_on_its_own(built: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        archive.extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    program = (
        "import ckptcheck; from ckptcheck.linter import rule_loader; "
        "print(ckptcheck.__file__, rule_loader.builtin_rule_folder(), len(rule_loader.load_rules()))"
    )
    shown = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    site = tmp_path / "site" / "ckptcheck"
    assert shown.stdout.split() == [str(site / "__init__.py"), str(site / "_rules"), str(len(rule_loader.load_rules()))]
    scan = subprocess.run(
        [sys.executable, "-P", "-m", "ckptcheck", "scan", str(CHECKPOINTS / "tiny-llama")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (scan.returncode, scan.stderr) == (0, "")
    program = "from ckptcheck.values.pattern_max import LIBRARY, is_compiled; print(is_compiled(), LIBRARY.is_file())"
    shown = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    wheel = next(built.glob("*.whl")).name
    assert shown.stdout.split() == (["False", "False"] if wheel.endswith("-py3-none-any.whl") else ["True", "True"])
    for name in (
        "py.typed",
        "linter/reporters/report.schema.json",
        "checkpoint/architectures.json",
        "checkpoint/config_classes.json",
        "_rules/index.json",
    ):
        assert (site / name).is_file()


def test_the_sdist_holds_what_a_build_needs(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in (
        "rules/index/idx001_missing_shard.py",
        "rules/index/idx001_missing_shard.toml",
        "ckptcheck/linter/runner.py",
        "ckptcheck/values/pattern_max.c",
        "ckptcheck/values/hatch_build.py",
        "README.md",
    ):
        assert name in names
