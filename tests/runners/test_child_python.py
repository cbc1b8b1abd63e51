"""One module starts every Python, and none of them imports from the working directory."""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptcheck.runners import import_path
from ckptcheck.runners.child_python import run_python
from tests.factories import hostile_folder
from tests.paths import ROOT

STARTERS = {
    "subprocess": {"run", "Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput"},
    "os": {"system", "popen", "posix_spawn", "posix_spawnp", "startfile"},
    "pty": {"spawn"},
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
    "concurrent.futures": {"ProcessPoolExecutor"},
}
"""Module → its functions that start a program. Also counted: os.exec…, os.spawn…, and whatever multiprocessing has."""
HARMLESS = {"multiprocessing.Pipe", "multiprocessing.connection.Connection", "multiprocessing.connection.wait"}
ALLOWED = {
    "ckptcheck/runners/child_python.py": {"subprocess.run", "subprocess.Popen"},
    "ckptcheck/values/hatch_build.py": {"subprocess.run"},  # a C compiler
    "ckptcheck/live/runtime/worker/ckptcheck_worker/command.py": {
        "subprocess.Popen"
    },  # the user's own, by gate --first-step
    # These run inside of an engine's worker, whose working directory is a folder of its own.
    "ckptcheck/live/runtime/worker/ckptcheck_worker/http_server.py": {"subprocess.Popen"},
    "ckptcheck/live/runtime/worker/ckptcheck_worker/forkserver_copy.py": {"multiprocessing"},
    "ckptcheck/live/runtime/worker/ckptcheck_worker/sglang_launch.py": {"multiprocessing"},
}
"""File → what it starts programs with."""


def find_starters(source: str) -> Iterator[str]:
    """Yield the dotted names in a source that can start a program."""
    tree = ast.parse(source)
    modules: dict[str, str] = {}
    named: set[str] = set()
    annotated = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {each.asname or each.name: each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            named |= {f"{node.module}.{each.name}" for each in node.names}
            modules |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in annotated:
            module = modules.get(ast.unparse(node.value), "")
            named.add(f"{module}.{node.attr}")
    for name in named - HARMLESS:
        module, _, function = name.rpartition(".")
        if module.startswith("multiprocessing"):
            yield "multiprocessing"
        elif function in STARTERS.get(module, ()) or (module == "os" and function.startswith(("exec", "spawn"))):
            yield name


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import subprocess as s\ns.run([])", {"subprocess.run"}),
        ("from subprocess import Popen as P", {"subprocess.Popen"}),
        ("def f():\n    import os\n    os.execv('x', [])", {"os.execv"}),
        ("from concurrent import futures\nfutures.ProcessPoolExecutor(2)", {"concurrent.futures.ProcessPoolExecutor"}),
        ("from multiprocessing import Process", {"multiprocessing"}),
        ("import multiprocessing as m\nm.get_context('spawn')", {"multiprocessing"}),
        ("import subprocess\ndef f() -> subprocess.Popen[bytes]:\n    raise subprocess.TimeoutExpired('', 1)", set()),
    ],
)
def test_what_starts_a_program_is_found(source: str, found: set[str]) -> None:
    assert set(find_starters(source)) == found


def test_one_module_starts_every_python() -> None:
    files = [*(ROOT / "ckptcheck").rglob("*.py"), *(ROOT / "rules").rglob("*.py")]
    found = {str(file.relative_to(ROOT)): set(find_starters(file.read_text(encoding="utf-8"))) for file in files}
    recipes = "ckptcheck/live/runtime/environments/recipes/"  # stand-ins in an engine's environment
    assert {file: names for file, names in found.items() if names and not file.startswith(recipes)} == ALLOWED


REPORT = "import json, os, sys; print(json.dumps({'path': sys.path, 'argv': sys.argv, 'name': __name__}))"


@pytest.mark.parametrize("python", [None, Path(sys.executable)], ids=["this Python", "another"])
@pytest.mark.parametrize("kind", ["code", "module", "file"])
def test_a_child_imports_nothing_from_the_working_directory(
    kind: str, python: Path | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    marks = hostile_folder.fill(here)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for file in ("reported.py", "script.py"):
        (elsewhere / file).write_text(REPORT, encoding="utf-8")
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend("")
    monkeypatch.syspath_prepend(str(tmp_path / "ours"))  # on the path of this Python alone
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(("", ".", str(here))))
    script = str(elsewhere / "script.py")
    what = {"code": ["-c", REPORT], "module": ["-m", "reported"], "file": [script]}[kind]
    done = run_python([*what, "an", "argument"], python, env={"PYTHONPATH": str(elsewhere)} if python else {})
    if kind == "module" and python is None:
        assert b"No module named reported" in done.stderr
        sys.path.insert(0, str(elsewhere))  # `syspath_prepend` restores the path
        done = run_python([*what, "an", "argument"])
    assert hostile_folder.read_marks(marks) == {}
    said = json.loads(done.stdout)
    assert said["argv"][1:] == ["an", "argument"]
    assert said["name"] == "__main__"
    assert str(here) not in said["path"]
    assert "" not in said["path"]
    assert not [folder for folder in said["path"] if Path(folder) == Path(import_path.__file__).parent]
    assert (str(tmp_path / "ours") in said["path"]) is (python is None)
    assert str(ROOT) in said["path"] or python is not None


def test_the_folder_that_ckptcheck_comes_from_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"lib:{tmp_path / 'mine'}")
    monkeypatch.chdir(tmp_path)
    path = ["", str(tmp_path / "lib"), str(tmp_path / "mine"), str(ROOT)]
    assert import_path.without_working_directory(path) == [str(tmp_path / "mine"), str(ROOT)]
    monkeypatch.chdir(ROOT)
    assert import_path.without_working_directory(["", "/elsewhere"]) == [str(ROOT), "/elsewhere"]


def test_a_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert import_path.without_working_directory(["", "lib", "/elsewhere"]) == ["/elsewhere"]
