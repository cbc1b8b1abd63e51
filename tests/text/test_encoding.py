"""Output works under any encoding: a sign that one lacks becomes a likeness or an escape, never a traceback."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ckptcheck.text.encoding import SIGNS, accept_every_sign, lacks_signs
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.factories.command_line import run

NO_UTF8 = {"PYTHONIOENCODING": "", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", tmp_path / "sound")
    broken = Path(shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", tmp_path / "broken"))
    index = broken / "model.safetensors.index.json"
    index.write_text(index.read_text(encoding="utf-8").replace("lm_head.weight", "größe→.weight"), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": encoding} for encoding in ("ascii", "latin-1", "cp437", "utf-8")] + [NO_UTF8],
    ids=["ascii", "latin-1", "cp437", "utf-8", "C"],
)
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["scan", "broken"], 1),
        (["scan", "nowhere→"], 2),
        (["scan", "broken", "--format", "github"], 1),
        (["diff", "sound", "sound", "-v"], 0),
        (["rules"], 0),
        (["rules", "--format", "markdown"], 0),
        (["rule", "PAR001"], 0),
        (["refit", "--help"], 0),
        (["parity", "judge", "--help"], 0),
    ],
)
def test_no_encoding_ends_a_command(here: Path, words: list[str], code: int, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "ckptcheck", *words]
    result = subprocess.run(command, cwd=here, capture_output=True, env={**os.environ, **environment}, check=False)
    assert result.returncode == code, result.stderr
    assert b"Traceback" not in result.stderr
    assert result.stdout or result.stderr


def test_our_signs_have_a_likeness_and_others_are_escaped(here: Path) -> None:
    shown = run(here, "scan", "broken", PYTHONIOENCODING="ascii").stdout
    assert "LlamaForCausalLM - 3 files" in shown
    assert "\n          -> " in shown
    assert "gr\\xf6\\xdfe->.weight" in shown
    assert "\nX 1 error" in shown or "\nX 2 errors" in shown
    assert json.loads(run(here, "scan", "broken", "--format", "json", PYTHONIOENCODING="ascii").stdout)["findings"]


def test_a_handler_that_the_user_chose_stays(here: Path) -> None:
    assert "? 3 files" in run(here, "scan", "sound", PYTHONIOENCODING="ascii:replace").stdout


def test_a_stream_that_is_no_file_is_left_alone() -> None:
    accept_every_sign(io.StringIO())
    assert not lacks_signs(io.StringIO())
    assert all(sign and ascii.isascii() for sign, ascii in SIGNS.items())
