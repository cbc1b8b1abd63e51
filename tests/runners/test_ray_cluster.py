"""Passes in a Ray cluster on the loopback interface: two nodes of one processor, one of which goes away."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ckptcheck
from ckptcheck.errors import CkptcheckError
from ckptcheck.runners import ray_cluster
from ckptcheck.runners.ray_cluster import Ray, parse_runner
from ckptcheck.values import value_pass
from tests.paths import FIXTURES, ROOT

MOE = FIXTURES / "checkpoints" / "tiny-qwen3-moe"


def test_what_on_takes() -> None:
    with pytest.raises(CkptcheckError, match="--on takes no 'dask'"):
        parse_runner("dask")


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: None)
    with pytest.raises(CkptcheckError) as caught:
        ckptcheck.manifest(MOE, runner=Ray())
    assert caught.value.message == "--on ray needs the package ray, which is not installed"
    assert caught.value.hint == "pip install 'ray[client]'"


STAND_INS = {
    "hangs": (
        "import threading\ndef init(**options):\n    threading.Event().wait()",
        "it did not accept a driver within 0.5 seconds",
    ),
    "ends the process": (
        "import os\ndef init(**options):\n    os.write(2, b'the raylet is dead')\n    os._exit(1)",
        "Ray gave up: the raylet is dead",
    ),
    "is killed": ("import os\ndef init(**options):\n    os.kill(os.getpid(), 9)", "Ray ended with exit code -9"),
}
"""What ray.init does where a raylet has stopped or died → a package in place of ray, and what the message says."""


def stand_in_for_ray(source: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a package in place of ray, for this process and its children. source: its `init`."""
    (folder / "ray.py").write_text(f"{source}\ndef is_initialized():\n    return False\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(sys.modules, "ray", None)  # at the end of the test whatever takes this place is removed
    del sys.modules["ray"]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))))


@pytest.mark.parametrize("what", STAND_INS)
def test_a_cluster_that_does_not_answer(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real ray 2.60, a stopped raylet ends the process after 30 seconds with exit code 1 and a line of its log."""
    source, said = STAND_INS[what]
    stand_in_for_ray(source, tmp_path, monkeypatch)
    if what == "hangs":
        monkeypatch.setattr(ray_cluster, "CONNECT_SECONDS", 0.5)
    with pytest.raises(CkptcheckError) as caught:
        ckptcheck.manifest(MOE, runner=Ray())
    assert caught.value.message == f"the Ray cluster at auto does not answer: {said}"
    assert "ray stop" in (caught.value.hint or "")


def test_no_cluster_at_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_for_ray("def init(**options):\n    raise ConnectionError('none runs')", tmp_path, monkeypatch)
    with pytest.raises(CkptcheckError, match="there is no Ray cluster at auto: none runs"):
        ckptcheck.manifest(MOE, runner=Ray())


@pytest.mark.parametrize("asked", ["first in another process", "then in this one"])
def test_a_cluster_is_not_told_to_import_from_here(asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of the real ray 2.60 import from the working directory that ray.init finds, before all other folders."""
    passes = "if 'pytest' not in sys.modules: return" if asked.startswith("then") else ""
    said = "raise ConnectionError('asked in ' + os.getcwd())"
    source = f"import os, sys\ndef init(**options):\n    {passes}\n    {said}\ndef shutdown(): pass"
    stand_in_for_ray(source, tmp_path, monkeypatch)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with pytest.raises(CkptcheckError, match=r"auto: asked in /$"):
        ckptcheck.manifest(MOE, runner=Ray())
    assert Path.cwd() == here


@dataclass(frozen=True)
class Wait:
    """Work that notes in a folder which node begins a unit, and is done with the first at once, with others when it may go on."""

    folder: Path
    places: tuple[frozenset[str], ...] = ()
    """The nodes on which a unit may run; (): all on any."""
    name = "waiting"
    result_type = str
    remote_jobs = 0

    def compute(self, unit: int) -> str:
        node = ray_cluster.find_own_node()
        (self.folder / f"{unit}.{node}").touch()
        wait_until(lambda: unit == 0 or (self.folder / "go").exists())
        return f"{unit} {node}"

    def describe(self, unit: int) -> str:
        return str(unit)

    def weigh(self, unit: int) -> int:
        return 1

    def find_nodes(self, unit: int) -> frozenset[str]:
        return self.places[unit] if self.places else frozenset()

    def list_objects(self) -> dict[str, str]:
        return {}

    def fits(self, unit: int, result: str) -> bool:
        return result.startswith(f"{unit} ")

    def is_whole(self, result: str) -> bool:
        return True

    def list_begun(self) -> list[tuple[int, str]]:
        """Return the units that were begun, and where."""
        begun = [path.name.partition(".") for path in self.folder.iterdir() if path.name != "go"]
        return [(int(unit), node) for unit, _, node in begun]

    def let_go(self) -> None:
        """Let the units end."""
        (self.folder / "go").touch()


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for what has to come, however long a busy machine takes for it; ten minutes are too long."""
    end = time.monotonic() + 600
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def run_aside(runner: Ray, work: Wait, number: int) -> tuple[threading.Thread, list[tuple[int, str]]]:
    """Run work in a thread, and return it with the results as they come."""
    results: list[tuple[int, str]] = []

    def run() -> None:
        results.extend(runner.run(work, range(number)))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster whose head has one processor. Its processes end with the tests."""
    ray = pytest.importorskip("ray", reason="pip install 'ray[client]'")
    from ray.cluster_utils import Cluster

    here = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    ray.init(address=cluster.address, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": here}})
    yield cluster
    ray.shutdown()
    cluster.shutdown()


pytestmark = pytest.mark.filterwarnings("ignore")  # ray's own


@pytest.mark.matrix
def test_the_report_of_one_machine(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_pass, "READ_BYTES", 512)
    monkeypatch.setattr(ray_cluster, "TASK_BYTES", 2048)
    alone = ckptcheck.scan(MOE)
    assert ckptcheck.scan(MOE, runner=Ray()).to_dict() == alone.to_dict()
    assert ckptcheck.manifest(MOE, runner=Ray()) == ckptcheck.manifest(MOE)
    ckptcheck.manifest(MOE, tmp_path / "manifest.json")
    there = ckptcheck.verify(MOE, tmp_path / "manifest.json", runner=Ray())
    assert there.to_dict() == ckptcheck.verify(MOE, tmp_path / "manifest.json").to_dict()
    run = FIXTURES / "megatron" / "tp2-pp2"
    assert ckptcheck.scan(run, runner=Ray()).to_dict() == ckptcheck.scan(run).to_dict()
    assert ckptcheck.manifest(run, runner=Ray()) == ckptcheck.manifest(run)
    sides = FIXTURES / "checkpoints" / "tiny-llama", FIXTURES / "checkpoints" / "tiny-w4a16"
    assert ckptcheck.diff(*sides, runner=Ray()).to_dict() == ckptcheck.diff(*sides).to_dict()
    fleet = [MOE, sides[0]]
    assert ckptcheck.scan(fleet, runner=Ray()).to_dict() == ckptcheck.scan(fleet).to_dict()


@pytest.mark.matrix
def test_the_findings_of_one_machine(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged checkpoint and a damaged run have the same findings, in the same order, on one machine, in parts and in Ray."""
    monkeypatch.setattr(value_pass, "READ_BYTES", 512)
    monkeypatch.setattr(ray_cluster, "TASK_BYTES", 2048)
    for number, source in enumerate((MOE, FIXTURES / "megatron" / "tp2-pp2")):
        target = tmp_path / str(number)
        shutil.copytree(source, target)
        for path in sorted([*target.rglob("*.safetensors"), *target.rglob("*.distcp")])[-2:]:
            content = bytearray(path.read_bytes())
            content[-3000:-1500] = b"\xff" * 1500
            path.write_bytes(content)
        ckptcheck.manifest(source, tmp_path / "manifest.json")
        for verb, *targets in (
            ("scan", target),
            ("verify", target, tmp_path / "manifest.json"),
            ("diff", source, target),
        ):
            function = getattr(ckptcheck, verb)
            alone = function(*targets)
            assert alone.findings or alone.error
            assert function(*targets, runner=Ray()).to_dict() == alone.to_dict()
            folder = tmp_path / f"{number}-{verb}"
            for index in range(7):
                ckptcheck.write_part(verb, *targets, part=f"{index}/7", folder=folder)
            joined = ckptcheck.join(folder)
            assert isinstance(joined, ckptcheck.Reports)
            assert joined[0].to_dict() == alone.to_dict()


@pytest.mark.matrix
def test_a_node_that_dies(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies while it and the other one have a unit that cannot end before: the other one does its units, too."""
    import ray

    monkeypatch.setattr(ray_cluster, "TASK_UNITS", 1)
    first = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    runner, work, number = Ray(), Wait(tmp_path), 8
    thread, results = run_aside(runner, work, number)
    wait_until(lambda: len({node for unit, node in work.list_begun() if unit}) == 2)
    cluster.remove_node(second, allow_graceful=False)
    wait_until(lambda: ray_cluster.list_nodes(ray).keys() == first)
    work.let_go()
    wait_until(lambda: not thread.is_alive())
    assert [unit for unit, _ in results] == [*range(number)]
    assert {result.split()[1] for unit, result in results if unit} == first
    assert len(runner.notes) == 1
    assert runner.notes[0].startswith("1 node of the Ray cluster died (")


@pytest.mark.matrix
def test_an_end_before_the_end_cancels_the_rest(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "TASK_UNITS", 1)
    monkeypatch.setattr(ray_cluster, "TASKS_AHEAD", 20)
    work, after = Wait(tmp_path / "work"), Wait(tmp_path / "after")
    work.folder.mkdir()
    after.folder.mkdir()
    run = iter(Ray().run(work, range(100)))
    assert next(run)[0] == 0
    run.close()  # what Ctrl-C does
    work.let_go()
    assert [unit for unit, _ in Ray().run(after, range(1))] == [0], "the cluster is free, and what was queued is gone"
    assert len(work.list_begun()) < 20


@pytest.fixture
def other_disk(cluster: Any, tmp_path: Path) -> Iterator[tuple[Path, Path, str]]:
    """A folder, another one that a second node sees in its place, and that node: it has a mount namespace of its own."""
    import ray

    enter = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    folder, other = tmp_path / "disk", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    mount = [*enter, "sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', str(other), str(folder)]
    if shutil.which("unshare") is None or subprocess.run([*mount, "true"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a folder in a namespace of his own")
    known = ray_cluster.list_nodes(ray).keys()
    start = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        f"--address={cluster.address}",
        "--num-cpus=1",
        "--block",
    ]
    with subprocess.Popen([*mount, *start], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: process.poll() is None and len(ray_cluster.list_nodes(ray)) > len(known))
            (node,) = ray_cluster.list_nodes(ray).keys() - known
            yield folder, other, node
        finally:
            process.terminate()
    wait_until(lambda: ray_cluster.list_nodes(ray).keys() == known)


@pytest.mark.matrix
def test_each_node_has_other_files(other_disk: tuple[Path, Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes of Megatron's asynchronous saves: each has what its ranks wrote, in a folder of the same name."""
    folder, other, _ = other_disk
    source = FIXTURES / "megatron" / "tp2-pp2"
    for path in filter(Path.is_file, source.rglob("*")):
        place = (other if path.name in ("__1_0.distcp", "__3_0.distcp") else folder) / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, place)
    monkeypatch.setattr(value_pass, "READ_BYTES", 512)
    report, alone = ckptcheck.scan(folder, runner=Ray()), ckptcheck.scan(source)
    assert report.sections[:-1] == alone.sections
    assert report.sections[-1].title == "Cluster"
    assert {**report.to_dict(), "target": "", "sections": []} == {**alone.to_dict(), "target": "", "sections": []}
    assert ckptcheck.manifest(folder, runner=Ray()).tensors == ckptcheck.manifest(source).tensors
    (other / "iter_0000100" / "__3_0.distcp").unlink()
    assert ckptcheck.scan(folder, runner=Ray()).verdict != "clean"


@pytest.mark.matrix
def test_tasks_go_to_the_node_of_their_files(
    other_disk: tuple[Path, Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the second node do not wait for those of the first, which come before."""
    import ray

    monkeypatch.setattr(ray_cluster, "TASK_UNITS", 1)
    second = other_disk[2]
    (first,) = ray_cluster.list_nodes(ray).keys() - {second}
    places = tuple(frozenset({first}) if unit < 20 else frozenset({second}) for unit in range(40))
    work = Wait(tmp_path / "begun", places)
    work.folder.mkdir()
    thread, results = run_aside(Ray(), work, 40)
    wait_until(lambda: {node for unit, node in work.list_begun() if unit} == {first, second})
    work.let_go()
    wait_until(lambda: not thread.is_alive())
    assert results == [(unit, f"{unit} {next(iter(places[unit]))}") for unit in range(40)]
