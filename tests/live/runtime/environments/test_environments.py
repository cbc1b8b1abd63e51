"""Recipes say why, and installers leave an environment that works, or say so."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.environments import recipe, store
from ckptcheck.live.runtime.environments.install import InstallOptions, install
from ckptcheck.live.runtime.environments.interpreter import PACKAGES, find_interpreter
from ckptcheck.live.runtime.environments.recipe import Recipe
from ckptcheck.live.runtime.environments.store import find_environment
from tests.factories import hostile_folder
from tests.paths import ROOT

pytestmark = pytest.mark.slow

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
TOY = f"""\
title = "A toy engine"
module = "vllm"
pythons = ["{VERSION}"]

[[pin]]
package = "vllm==1.0"
why = "the only one there is"

[[stand-in]]
folder = "stand_ins/gpu"
why = "there is none here"

[[patch]]
file = "vllm/__init__.py"
prepend = "patches/first.py"
why = "it has to know that it was patched"

[[variable]]
name = "TOY_DEVICE"
value = "cpu"
why = "it would look for a GPU"
"""
ENGINE = "import os, gpu, beside\n__version__ = '1.0'\nassert PATCHED and os.environ['TOY_DEVICE'] == 'cpu'\n"


def wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> None:
    """Write a wheel by hand."""
    info = f"{name}-{version}.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: not-there\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = []
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record.append(f"{path},sha256={digest},{len(text.encode())}")
        archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,"]) + "\n")


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a recipe for an engine that is two hand-made wheels; pip finds no others."""
    folder = tmp_path / "recipes" / "toy-cpu"
    (folder / "stand_ins/gpu").mkdir(parents=True)
    (folder / "stand_ins/gpu/__init__.py").write_text("")
    (folder / "patches").mkdir()
    (folder / "patches/first.py").write_text("PATCHED = True\n")
    (folder / "recipe.toml").write_text(TOY)
    (folder / "requirements.txt").write_text("# what vllm requires\nbeside==2.1\n")
    wheel(tmp_path / "wheels", "vllm", "1.0", {"vllm/__init__.py": ENGINE})
    wheel(tmp_path / "wheels", "beside", "2.1", {"beside.py": ""})
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


WITHOUT_CLOCK = """
from ckptcheck.__main__ import main
from ckptcheck.cli import output
output.LINE_INTERVAL = float("inf")
main()
"""
"""ckptcheck as a command that says nothing about the time that it takes: on a loaded machine pip takes a minute."""


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_CLOCK, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("known", recipe.builtin_recipes(), ids=lambda known: known.name)
def test_a_recipe_says_why(known: Recipe) -> None:
    contents = known.contents
    for part in (
        *(*contents.pin, *contents.leave_out, *contents.stand_in, *contents.patch, *contents.remove),
        *contents.variable,
    ):
        assert len(part.why.split()) >= 2, part
        assert not part.why[0].isspace()
        assert part.why[-1] != "."
    out = [package for left in contents.leave_out for package in left.packages]
    names = [package.partition("==")[0].lower().replace("_", "-") for package in known.packages]
    assert not set(out) & set(names)
    assert len(set(out)) == len(out)
    assert (known.base or known).torch == "torch==2.13.0", "tensors pass between environments: one torch for all"
    listed = names[len(contents.pin) :]
    assert listed == sorted(listed)
    assert known.engine in PACKAGES
    used = {known.folder / "recipe.toml", known.folder / "requirements.txt"}
    used |= {known.folder / patch.prepend for patch in contents.patch}
    used |= {path for part in contents.stand_in for path in (known.folder / part.folder).rglob("*.py")}
    there = {path for path in known.folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert used == there


def test_a_reason_is_not_part_of_what_is_built(toy: Path) -> None:
    before = recipe.load_recipe(toy).digest()
    (toy / "recipe.toml").write_text(TOY.replace("the only one there is", "another reason"))
    assert recipe.load_recipe(toy).digest() == before
    different = set()
    for file, text in [
        ("recipe.toml", TOY.replace("vllm==1.0", "vllm==1.1")),
        ("requirements.txt", "beside==2.2\n"),
        ("patches/first.py", "PATCHED = 2\n"),
        ("stand_ins/gpu/__init__.py", "GPU = 0\n"),
    ]:
        old = (toy / file).read_text()
        (toy / file).write_text(text)
        different.add(recipe.load_recipe(toy).digest())
        (toy / file).write_text(old)
    assert len(different | {before}) == 5


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title", "titel", "Object contains unknown field `titel`"),
        ("why = ", "because = ", "Object contains unknown field `because`"),
        ('why = "the only one there is"', "", "Object missing required field `why`"),
        ("title = ", "title = = ", "Invalid value (at line 1, column 9)"),
    ],
)
def test_a_recipe_that_cannot_be_followed(toy: Path, old: str, new: str, message: str) -> None:
    (toy / "recipe.toml").write_text(TOY.replace(old, new, 1))
    with pytest.raises(CkptcheckError) as caught:
        recipe.find_recipe(str(toy))
    assert f"recipe.toml: {message}" in caught.value.message


def test_a_recipe_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CkptcheckError, match="there is no recipe tgi") as caught:
        recipe.find_recipe("tgi")
    names = ", ".join(known.name for known in recipe.builtin_recipes())
    assert caught.value.hint == f"choose one of {names}, or name a folder that holds a recipe.toml"


def test_an_environment_is_built_kept_renewed_and_removed(toy: Path, tmp_path: Path) -> None:
    download = tmp_path / "download"
    marks = hostile_folder.fill(download, leave_out=hostile_folder.list_first_modules() | {"ckptcheck"})
    first = command("engine", "install", str(toy), cwd=download)
    folder = tmp_path / "cache/ckptcheck/engines/toy-cpu"
    assert (first.returncode, first.stdout) == (0, "")
    assert hostile_folder.read_marks(marks) == {}
    said = first.stderr.splitlines()
    assert said[:3] == [
        f"toy-cpu: an environment of {sys.executable}",
        "toy-cpu: 2 packages",
        "toy-cpu: import vllm",
    ]
    assert said[3].startswith("toy-cpu: vllm 1.0; ")
    environment = find_environment(recipe.load_recipe(toy))
    assert (environment.state, environment.folder) == ("ready", folder)
    assert environment.build_info is not None
    assert environment.build_info.versions == {"vllm": "1.0"}
    assert environment.build_info.python == sys.version.split()[0]
    assert environment.build_info.size > 1_000_000
    assert "Successfully installed beside-2.1 vllm-1.0" in environment.log.read_text()
    seen = subprocess.run(
        [environment.python, "-c", "import vllm, gpu; print(vllm.PATCHED)\nimport msgspec"],
        env={"TOY_DEVICE": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (seen.stdout, seen.stderr.splitlines()[-1]) == ("True\n", "ModuleNotFoundError: No module named 'msgspec'")

    written = (folder / store.READY).stat().st_mtime_ns
    second = command("engine", "install", str(toy), cwd=tmp_path)
    assert second.stderr.splitlines()[0] == f"toy-cpu is ready: {folder}"
    other = command("engine", "install", str(toy), "--python", "/another", cwd=tmp_path)
    assert other.stderr.splitlines()[0] == f"toy-cpu is ready: {folder}; --force rebuilds it with the options given"
    assert (folder / store.READY).stat().st_mtime_ns == written

    (toy / "patches/first.py").write_text("PATCHED = 2\n")
    assert find_environment(recipe.load_recipe(toy)).state == "stale"
    refused = command("engine", "install", str(toy), "--python", str(tmp_path / "no-python"), cwd=tmp_path)
    assert (refused.returncode, find_environment(recipe.load_recipe(toy)).state) == (2, "stale")
    third = command("engine", "install", str(toy), cwd=tmp_path)
    assert third.stderr.splitlines()[0] == "toy-cpu: what is there is from another recipe; it is built anew"
    assert find_environment(recipe.load_recipe(toy)).state == "ready"

    (folder / "bin/python").unlink()
    (folder / "bin/python").symlink_to(tmp_path / "a-python-that-was-removed")
    assert find_environment(recipe.load_recipe(toy)).state == "broken"

    gone = command("engine", "remove", str(toy), cwd=tmp_path)
    assert (gone.returncode, gone.stderr) == (0, "toy-cpu is removed\n")
    assert not folder.exists()
    assert find_environment(recipe.load_recipe(toy)).state == "missing"
    assert command("engine", "remove", str(toy), cwd=tmp_path).stderr == "toy-cpu was not there\n"


def test_a_folder_that_a_package_brings_by_mistake_is_removed(toy: Path, tmp_path: Path) -> None:
    before = recipe.load_recipe(toy).digest()
    wheel(tmp_path / "wheels", "beside", "2.1", {"beside.py": "", "tests/__init__.py": "", "tests/data/one.py": ""})
    (toy / "recipe.toml").write_text(
        TOY + '\n[[remove]]\npath = "tests"\nwhy = "it hides other packages of that name"\n'
    )
    known = recipe.load_recipe(toy)
    assert known.digest() != before
    assert ("removed", "tests") in {(difference.kind, difference.of) for difference in known.differences}
    environment = install(known, InstallOptions())
    site = next(environment.folder.glob("lib/python*/site-packages"))
    assert (site / "beside.py").is_file()
    assert not (site / "tests").exists()
    wheel(tmp_path / "wheels", "beside", "2.1", {"beside.py": ""})
    with pytest.raises(CkptcheckError, match="tests cannot be removed: no such folder is installed"):
        install(known, InstallOptions(force=True))


def test_an_environment_is_built_upon_another(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees the packages of its base after its own, is built after it, and is not ready without it."""
    monkeypatch.setattr(recipe, "FOLDER", toy.parent)
    folder = toy.parent / "job-cpu"
    folder.mkdir()
    text = f'''title = "A job"\nmodule = "trl"\npythons = ["{VERSION}"]\nbase = "toy-cpu"\n'''
    text += """[[pin]]\npackage = "trl==1.0"\nwhy = "the only one there is"\n"""
    (folder / "recipe.toml").write_text(text)
    (folder / "requirements.txt").write_text("beside==3.0\n")
    wheel(tmp_path / "wheels", "trl", "1.0", {"trl.py": "import vllm, beside\nVERSION = beside.VERSION\n"})
    wheel(tmp_path / "wheels", "beside", "3.0", {"beside.py": "VERSION = 3\n"})
    said: list[str] = []
    environment = install(recipe.load_recipe(folder), InstallOptions(say=said.append))
    base = find_environment(recipe.load_recipe(toy))
    assert (environment.state, base.state) == ("ready", "ready")
    assert "toy-cpu: import vllm" in said
    assert f"job-cpu: an environment of {base.python}" in said
    assert environment.build_info is not None
    assert environment.build_info.size < 1_000_000, "nothing is there twice"
    assert environment.recipe.variables == {"TOY_DEVICE": "cpu"}
    program = "import trl, vllm; print(trl.VERSION, vllm.__file__)"
    for python, shown in ((environment.python, f"3 {base.folder}"), (base.python, "")):
        ran = subprocess.run(
            [python, "-c", program], env={"TOY_DEVICE": "cpu"}, capture_output=True, text=True, check=False
        )
        assert ran.stdout.startswith(shown)
        assert bool(ran.stdout) == bool(shown), "the base is as it was"
    assert find_interpreter("trl").versions == {"trl": "1.0"}
    digest = recipe.load_recipe(folder).digest()
    (toy / "requirements.txt").write_text("beside==2.2\n")
    assert recipe.load_recipe(folder).digest() != digest, "with another base it is another environment"
    (toy / "requirements.txt").write_text("beside==2.1\n")
    (folder / "recipe.toml").write_text(text.replace("toy-cpu", "no-cpu"))
    with pytest.raises(CkptcheckError, match="it is built upon no-cpu, and ckptcheck has no such recipe"):
        recipe.load_recipe(folder)
    (folder / "recipe.toml").write_text(text.replace("toy-cpu", "job-cpu"))
    with pytest.raises(CkptcheckError, match="it is built upon itself"):
        recipe.load_recipe(folder)
    (folder / "recipe.toml").write_text(text)
    store.remove_environment(base)
    assert find_environment(recipe.load_recipe(folder)).state == "broken"


@pytest.fixture
def silent_index(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """An index that takes a connection and never says a word: pip hangs in the middle of an installation."""
    server = socket.create_server(("127.0.0.1", 0))
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    yield server
    server.close()


@pytest.mark.parametrize(("number", "code", "left"), [(signal.SIGINT, 130, "missing"), (signal.SIGKILL, -9, "broken")])
def test_an_interrupted_installation_is_not_ready(
    toy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    silent_index: socket.socket,
    number: int,
    code: int,
    left: str,
) -> None:
    index = f"http://127.0.0.1:{silent_index.getsockname()[1]}/simple"
    installer = subprocess.Popen(
        [sys.executable, "-m", "ckptcheck", "engine", "install", str(toy), "--index-url", index],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    connection, _ = silent_index.accept()  # pip is there
    os.killpg(installer.pid, number)
    said = installer.communicate()[1]
    connection.close()
    assert installer.returncode == code
    if number == signal.SIGINT:
        assert said.splitlines()[-1] == "ckptcheck: interrupted"
    environment = find_environment(recipe.load_recipe(toy))
    assert environment.state == left
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    again: list[str] = []
    assert install(recipe.load_recipe(toy), InstallOptions(say=again.append)).state == "ready"
    assert ("toy-cpu: what is there is only half built; it is built anew" in again) == (left == "broken")


def test_two_installers_do_not_collide(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the first, and takes what it has built."""
    first_builds, second_waits = threading.Event(), threading.Event()
    built: list[str] = []

    def build(environment: store.Environment, _: Path, options: InstallOptions) -> store.Environment:
        built.append(threading.current_thread().name)
        first_builds.set()
        assert second_waits.wait(60)
        python = environment.python
        python.parent.mkdir(parents=True)
        python.symlink_to(sys.executable)
        ready = store.BuildInfo(environment.recipe.digest(), "3", {}, 1)
        (environment.folder / store.READY).write_bytes(msgspec.json.encode(ready))
        return find_environment(environment.recipe)

    flock = fcntl.flock

    def watched(file: object, operation: int) -> None:
        if operation == fcntl.LOCK_EX:
            second_waits.set()
        flock(file, operation)  # type: ignore[arg-type]

    monkeypatch.setattr("ckptcheck.live.runtime.environments.install._build", build)
    monkeypatch.setattr(fcntl, "flock", watched)
    said: list[str] = []
    first = threading.Thread(name="first", target=install, args=(recipe.load_recipe(toy), InstallOptions()))
    second = threading.Thread(
        name="second", target=install, args=(recipe.load_recipe(toy), InstallOptions(force=True, say=said.append))
    )
    first.start()
    assert first_builds.wait(60)
    second.start()
    first.join()
    second.join()
    assert built == ["first"]
    assert said[0] == "toy-cpu: another process is building it; waiting for that"
    assert said[1].startswith("toy-cpu is ready: ")


def test_what_fails_is_said_in_a_sentence_with_the_log(toy: Path, tmp_path: Path) -> None:
    log = tmp_path / "cache/ckptcheck/engines/toy-cpu.log"
    (toy / "requirements.txt").write_text("beside==9.9\n")
    result = command("engine", "install", str(toy), cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.splitlines()[-2:] == [
        "ckptcheck: pip could not install 2 packages: No matching distribution found for beside==9.9",
        f"           its log is {log}",
    ]
    assert "(from versions: 2.1)" in log.read_text()
    assert find_environment(recipe.load_recipe(toy)).state == "missing"

    (toy / "requirements.txt").write_text("")  # so `import beside` fails
    result = command("engine", "install", str(toy), cwd=tmp_path)
    assert result.stderr.splitlines()[-2:] == [
        "ckptcheck: toy-cpu was built, but vllm cannot be imported: ModuleNotFoundError: No module named 'beside'",
        f"           the log is {log}",
    ]
    assert "Traceback" in log.read_text()
    assert find_environment(recipe.load_recipe(toy)).state == "missing"


def test_torch_is_taken_without_cuda(toy: Path, tmp_path: Path) -> None:
    """On Linux it is asked for as the build that says it is for CPUs, at the index named if there is one."""
    (toy / "recipe.toml").write_text(TOY + '\n[[pin]]\npackage = "torch==2.13.0"\nwhy = "as ever"\n')
    (toy / "requirements.txt").write_text("beside==2.1\n")
    wheel(tmp_path / "wheels", "torch", "2.13.0", {"torch.py": "CUDA = True\n"})
    if sys.platform.startswith("linux"):
        with pytest.raises(CkptcheckError, match=r"pip could not install torch==2.13.0\+cpu: No matching") as caught:
            install(recipe.load_recipe(toy), InstallOptions())
        assert "--torch-index URL" in (caught.value.hint or "")
    wheel(tmp_path / "wheels", "torch", "2.13.0+cpu", {"torch.py": "CUDA = False\n"})
    environment = install(recipe.load_recipe(toy), InstallOptions())
    assert environment.build_info is not None
    assert environment.build_info.versions == {"vllm": "1.0", "torch": "2.13.0+cpu"}


def test_a_python_that_cannot_be_built_on(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CkptcheckError, match=r"cannot run .*no-python: No such file"):
        install(recipe.load_recipe(toy), InstallOptions(python=tmp_path / "no-python"))
    bare = tmp_path / "bare"
    no_venv = "case \"$*\" in *venv*) echo 'No module named venv' >&2; exit 1;; esac"
    bare.write_text(f'#!/bin/sh\n{no_venv}\nexec {sys.executable} "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(
        CkptcheckError, match="bare cannot create a virtual environment: No module named venv"
    ) as caught:
        install(recipe.load_recipe(toy), InstallOptions(python=bare))
    assert "python3-venv is needed" in (caught.value.hint or "")
    (toy / "recipe.toml").write_text(TOY.replace(f'["{VERSION}"]', '["2.7"]'))
    bare.rename(tmp_path / "python2.7").write_text("#!/bin/sh\ntouch ran\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f":{os.environ['PATH']}:.")
    with pytest.raises(CkptcheckError, match=r"toy-cpu was tried with Python 2\.7, and there is none on the PATH"):
        install(recipe.load_recipe(toy), InstallOptions())
    assert not (tmp_path / "ran").exists()


def test_the_interpreter_of_an_engine(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "FOLDER", toy.parent)
    with pytest.raises(CkptcheckError, match="the environment toy-cpu is not installed") as caught:
        find_interpreter("vllm")
    hint = "ckptcheck engine install toy-cpu, or --set engine-python=PATH for a Python that has vllm"
    assert caught.value.hint == hint
    environment = install(recipe.load_recipe(toy), InstallOptions())
    for name in ("vllm", "toy-cpu"):
        found = find_interpreter(name)
        assert (found.engine, found.version, found.variables) == ("vllm", "1.0", {"TOY_DEVICE": "cpu"})
        assert found.python == environment.python
    own = find_interpreter("vllm", environment.python)
    assert (own.python, own.versions, own.variables) == (environment.python, {"vllm": "1.0"}, {})
    wheel(tmp_path / "wheels", "torch", "2.13.0+cpu", {"torch.py": ""})
    subprocess.run([environment.python, "-m", "pip", "install", "-q", "--no-deps", "torch"], check=True)
    assert find_interpreter("vllm", environment.python).variables == {"TOY_DEVICE": "cpu"}
    monkeypatch.setenv("TOY_DEVICE", "tpu")
    assert find_interpreter("vllm").variables == find_interpreter("vllm", environment.python).variables == {}
    with pytest.raises(CkptcheckError, match=r"bin/python has no sglang \(it has torch 2\.13\.0\+cpu\)$"):
        find_interpreter("sglang", environment.python)
    with pytest.raises(CkptcheckError, match="there is no engine tgi"):
        find_interpreter("tgi")
    with pytest.raises(CkptcheckError, match="false is not a Python"):
        find_interpreter("vllm", Path("/bin/false"))
    (toy / "requirements.txt").write_text("beside==2.2\n")
    with pytest.raises(CkptcheckError, match="toy-cpu was built from another recipe"):
        find_interpreter("vllm")
    (environment.folder / store.READY).write_text("{")
    with pytest.raises(CkptcheckError, match="toy-cpu is only half built"):
        find_interpreter("vllm")
    assert find_interpreter("vllm", environment.python).version == "1.0"


def test_list_and_doctor_say_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "ckptcheck/engines/sglang-cpu").mkdir(parents=True)
    vllm = find_environment(recipe.find_recipe("vllm-cpu"))
    vllm.python.parent.mkdir(parents=True)
    vllm.python.symlink_to(sys.executable)
    built = store.BuildInfo(
        vllm.recipe.digest(), "3.11.7", {"torch": "2.13.0+cpu", "vllm-cpu": "0.32.0"}, 2_400_000_000
    )
    (vllm.folder / store.READY).write_bytes(msgspec.json.encode(built))
    listed = json.loads(command("engine", "list", "--format", "json", cwd=tmp_path).stdout)
    assert {entry["name"]: (entry["engine"], entry["state"]) for entry in listed} == {
        "checkpoint-engine-cpu": ("checkpoint_engine", "missing"),
        "megatron": ("megatron", "missing"),
        "sglang-cpu": ("sglang", "broken"),
        "trl-cpu": ("trl", "missing"),
        "verl-cpu": ("verl", "missing"),
        "vllm-cpu": ("vllm", "ready"),
    }
    by_name = {entry["name"]: entry for entry in listed}
    assert {kind for entry in listed for kind in {each["kind"] for each in entry["differences"]}} == {
        "pin", "left out", "stand-in", "patch", "removed", "variable",
    }  # fmt: skip
    stubs = [each["of"] for each in by_name["sglang-cpu"]["differences"] if each["kind"] in ("stand-in", "patch")]
    assert stubs == ["sgl_kernel", "triton", "torchvision/_meta_registrations.py"]
    assert {"kind": "variable", "of": "VLLM_NO_USAGE_STATS=1", "why": "a check reports to nobody"} in by_name[
        "vllm-cpu"
    ].pop("differences")
    assert by_name["vllm-cpu"] == {
        "name": "vllm-cpu",
        "engine": "vllm",
        "state": "ready",
        "path": str(vllm.folder),
        "versions": {"torch": "2.13.0+cpu", "vllm-cpu": "0.32.0"},
        "python": "3.11.7",
        "size": 2_400_000_000,
    }
    text = command("engine", "list", cwd=tmp_path).stdout
    assert "  stand-in: triton (1 GB, and it has no backend for CPUs; SGLang defines its kernels" in text
    assert "  patch: torchvision/_meta_registrations.py (torchvision's library is compiled for CUDA" in text
    assert "sglang-cpu   broken\n" in text
    assert "  ckptcheck engine install sglang-cpu\n" in text
    assert "vllm-cpu     ready   2.4 GB\n" in text
    doctor = command("doctor", cwd=tmp_path).stdout
    assert "  – megatron is not installed: ckptcheck engine install megatron\n" in doctor
    assert "  – sglang-cpu is only half built, or its Python is gone: ckptcheck engine install sglang-cpu\n" in doctor
    assert "  ✓ vllm-cpu: torch 2.13.0+cpu, vllm-cpu 0.32.0 on Python 3.11.7\n" in doctor


def test_the_stand_ins_are_loud(tmp_path: Path) -> None:
    """They let modules that define kernels be imported, and nothing be computed."""
    source = recipe.find_recipe("sglang-cpu").folder / "stand_ins"
    shutil.copytree(source, tmp_path / "site")
    program = """
import sys; sys.path.insert(0, "site")
import triton, triton.language as tl
from triton.language.extra import libdevice
from triton.runtime.autotuner import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor
import sgl_kernel
from sgl_kernel.anything import fused

BLOCK = tl.constexpr(128)

@triton.autotune(configs=[triton.Config({"BLOCK": 1}, num_warps=4)], key=["n"])
@triton.heuristics({"EVEN": lambda arguments: True})
@triton.jit
def kernel(x, n: tl.constexpr, dtype=tl.float32):
    "Doubles."

@triton.jit(do_not_specialize=["n"])
def other(x, n): pass

class Descriptor(TensorDescriptor): pass

assert kernel.__name__ == "kernel" and kernel.__doc__ == "Doubles."
assert triton.cdiv(7, 2) == 4 and triton.next_power_of_2(5) == 8
assert "cpu" not in triton.backends.backends and issubclass(OutOfResources, Exception)
for attempt in (lambda: kernel[(1,)](1), lambda: other[(1,)](1), lambda: fused(1), lambda: sgl_kernel.rmsnorm(1),
                lambda: triton.runtime.driver.active, lambda: __import__("sgl_kernel.scalar_type")):
    try:
        attempt()
    except Exception as error:
        print(type(error).__name__, error)
"""
    result = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (result.stdout.splitlines(), result.stderr) == (
        [
            "NotImplementedError the triton kernel kernel was launched, and this environment has no GPU",
            "NotImplementedError the triton kernel other was launched, and this environment has no GPU",
            "NotImplementedError the kernel sgl_kernel.anything.fused was called, and this environment has none",
            "NotImplementedError the kernel sgl_kernel.rmsnorm was called, and this environment has none",
            "RuntimeError there is no GPU, so triton has no active driver",
            "ModuleNotFoundError No module named 'sgl_kernel.scalar_type'",
        ],
        "",
    )


def test_ci_builds_what_the_tests_need() -> None:
    steps = (ROOT / ".ci/run").read_text().split()
    assert steps.index("engines") < steps.index("test-all")
    (line,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("ENGINES ?=")]
    assert set(line.split()[2:]) == {known.name for known in recipe.builtin_recipes()}
