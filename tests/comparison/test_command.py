"""`ckptcheck diff` as a command: exit codes, formats, accounts, and trouble in one sentence."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cases import CHECKPOINTS, edit_tensors

TINY = CHECKPOINTS / "tiny-llama"


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ckptcheck", "diff", *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "other"))


def test_equal_is_0_and_every_tensor_is_accounted_for(other: Path) -> None:
    result = command(TINY, other)
    assert (result.returncode, result.stderr) == (0, "")
    assert f"{TINY} ↔ {other}" in result.stdout
    assert "30 matched · 0 missing · 0 extra · 0 aliased · bitwise" in result.stdout
    assert "✓ clean" in result.stdout


@pytest.mark.parametrize("form", ["json", "sarif", "junit", "github", "text"])
def test_different_is_1_in_every_format(other: Path, form: str, tmp_path: Path) -> None:
    edit_tensors(other / "model.safetensors", {"model.norm.weight": False})
    result = command(TINY, other, "--format", form, "-o", tmp_path / "report")
    assert (result.returncode, result.stderr) == (1, "")
    assert "missing in the second checkpoint: model.norm.weight" in (tmp_path / "report").read_text(encoding="utf-8")


def test_the_tolerance_is_printed(other: Path) -> None:
    assert "· rtol 0, atol 0.001" in command(TINY, other, "--atol", "1e-3").stdout


def test_what_cannot_be_compared_is_2(other: Path, tmp_path: Path) -> None:
    (other / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes()[:300])
    result = command(TINY, other)
    assert result.returncode == 2
    assert "cannot be compared: model.safetensors is missing or cannot be read" in result.stderr
    assert command(TINY, tmp_path / "nowhere").returncode == 2
    assert command(TINY, TINY, "--cast", "int4").stderr.startswith("ckptcheck: 'int4' is no dtype to compare in")


def test_nothing_in_common_is_not_equal() -> None:
    result = command(TINY, CHECKPOINTS / "tiny-lora", "--format", "json")
    report = json.loads(result.stdout)
    assert result.returncode == 1
    assert "CMP006" in [finding["code"] for finding in report["findings"]]
    assert report["subject"].startswith("0 matched · 30 missing · ")


def test_a_file_that_ends_while_it_is_read_is_2(other: Path) -> None:
    from ckptcheck import pack
    from ckptcheck.comparison.comparison import Comparison
    from ckptcheck.comparison.open import open_side
    from ckptcheck.run import run

    seen = Comparison(open_side(str(TINY)), open_side(str(other)))
    _ = seen.second
    path = other / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-40])
    report = run(seen, pack.load())
    assert report.exit_code("error") == 2
    assert "it ends earlier than its header says" in report.crashed[0][1]


def test_heavy_libraries_are_not_loaded(other: Path) -> None:
    program = (
        "import sys; from ckptcheck.cli.app import app\n"
        "try: app()(['diff', *sys.argv[1:]])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'transformers', 'mbridge'} & sys.modules.keys()"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(TINY), str(other)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
