"""What is published: the wheel and the sdist, not the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from ckptcheck.linter import rule_loader
from tests.factories.checkpoint_cases import CHECKPOINTS, ROOT


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(tmp_path_factory.mktemp("dist"))


def _build(out: Path, *arguments: str, **environment: str) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(out), *arguments],
        cwd=ROOT,
        check=True,
        capture_output=True,
        env={**os.environ, **environment},
    )
    return out


def _find_program(name: str) -> str:
    """Return a program of this Python's environment, or of the path; skip the test where there is none."""
    path = shutil.which(name, path=sysconfig.get_path("scripts")) or shutil.which(name)
    if path is None:
        pytest.skip(f"needs {name}: pip install '.[package]'")
    return path


def test_a_build_in_isolation_can_make_the_index() -> None:
    program = (
        "import sys; from pathlib import Path; hook = Path(sys.argv[1]) / 'ckptcheck/linter/rule_index.py'\n"
        "space = {'__name__': 'index', '__file__': str(hook)}; sys.modules['index'] = type(sys)('index')\n"
        "exec(compile(hook.read_text(), hook, 'exec'), space); print(len(space['build_index'](Path(sys.argv[1]) / 'rules')))"
    )
    # neither the site's packages nor ckptcheck itself, as pip builds what it installs
    command = [sys.executable, "-I", "-S", "-c", program, str(ROOT)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    assert int(made.stdout) > 100_000


@pytest.mark.slow
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
        "reporters/report.schema.json",
        "reporters/html/uplot/uPlot.iife.min.js",
        "frameworks/verl/defaults.toml",
        "frameworks/trl/grpo_keys.json",
        "live/runtime/engines/known_issues.toml",
        "checkpoint/architectures.json",
        "checkpoint/config_classes.json",
        "checkpoint/parameters.json",
        "_rules/index.json",
    ):
        assert (site / name).is_file()


@pytest.mark.slow
def test_the_sdist_holds_what_a_build_needs(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in (
        "rules/index/idx001_missing_shard.py",
        "rules/index/idx001_missing_shard.toml",
        "ckptcheck/linter/runner.py",
        "ckptcheck/values/pattern_max.c",
        "ckptcheck/values/shard_digest.c",
        "ckptcheck/values/hatch_build.py",
        "README.md",
    ):
        assert name in names


def test_the_wheel_holds_no_cases_and_no_guides(built: Path) -> None:
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    assert [name for name in names if name.endswith(".md") or re.search(r"_rules/.*\.toml$", name)] == []
    assert {name.partition("/")[0] for name in names} == {
        "ckptcheck",
        next(n for n in names if "dist-info" in n).partition("/")[0],
    }


@pytest.mark.slow
def test_two_builds_are_equal(built: Path, tmp_path: Path) -> None:
    again = _build(tmp_path)
    assert {path.name: path.read_bytes() for path in again.iterdir()} == {
        path.name: path.read_bytes() for path in built.iterdir()
    }


@pytest.mark.slow
def test_a_build_without_the_kernel_fits_every_platform(tmp_path: Path) -> None:
    (wheel,) = _build(tmp_path, "-t", "wheel", CKPTCHECK_PURE_PYTHON="1").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not any(name.endswith(".so") for name in zipfile.ZipFile(wheel).namelist())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="an index takes a wheel of another system as it is built")
def test_the_kernel_runs_on_every_linux_that_an_index_has_a_name_for(built: Path, tmp_path: Path) -> None:
    auditwheel, patchelf = _find_program("auditwheel"), _find_program("patchelf")
    wheel = next(built.glob("*.whl"))
    if wheel.name.endswith("-any.whl"):
        pytest.skip("there is no C compiler")
    machine = sysconfig.get_platform().rpartition("-")[2]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cibuildwheel"]["linux"]
    words = settings["repair-wheel-command"].replace("$(uname -m)", machine).split()
    subprocess.run(
        [auditwheel, *(word.format(dest_dir=tmp_path, wheel=wheel) for word in words[1:])],
        check=True,
        capture_output=True,
        env={**os.environ, "PATH": os.pathsep.join([str(Path(patchelf).parent), os.environ["PATH"]])},
    )
    (repaired,) = tmp_path.glob("*.whl")
    assert re.search(rf"-py3-none-manylinux2014_{machine}\.manylinux_2_17_{machine}\.whl$", repaired.name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [("twine", "check", "--strict"), ("check-wheel-contents",)], ids=lambda words: words[0]
)
def test_an_index_accepts_the_files(built: Path, arguments: tuple[str, ...]) -> None:
    files = sorted(built.iterdir()) if arguments[0] == "twine" else sorted(built.glob("*.whl"))
    result = subprocess.run(
        [_find_program(arguments[0]), *arguments[1:], *map(str, files)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_uvx_runs_the_wheel(built: Path, tmp_path: Path) -> None:
    uv = _find_program("uv")
    words = [uv, "tool", "run", "--python", sys.executable, "--from", str(next(built.glob("*.whl"))), "ckptcheck"]
    model = CHECKPOINTS / "tiny-llama"
    result = subprocess.run([*words, "scan", str(model)], cwd=tmp_path, capture_output=True, text=True, check=False)
    if re.search("dns error|error sending request|Failed to fetch", result.stderr):
        pytest.skip("uv reaches no package index")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "LlamaForCausalLM" in result.stdout
