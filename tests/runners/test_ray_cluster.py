"""Passes in a Ray cluster on the loopback interface: two nodes of one processor, one of which goes away."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
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
    assert caught.value.hint == "pip install 'ckptcheck[ray]'"


@dataclass(frozen=True)
class Sleep:
    """Work that takes a while, and notes each unit in a folder when it begins."""

    folder: Path
    seconds: float
    name = "naps"
    result_type = int
    remote_jobs = 0

    def compute(self, unit: int) -> int:
        (self.folder / f"{unit}.{os.getpid()}").touch()
        time.sleep(self.seconds)
        return unit * unit

    def describe(self, unit: int) -> str:
        return str(unit)

    def weigh(self, unit: int) -> int:
        return 1

    def list_objects(self) -> dict[str, str]:
        return {}

    def is_whole(self, result: int) -> bool:
        return True


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster whose head has one processor. Its processes end with the tests."""
    ray = pytest.importorskip("ray", reason="pip install 'ckptcheck[ray]'")
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
    assert ckptcheck.scan_all(fleet, runner=Ray()).to_dict() == ckptcheck.scan_all(fleet).to_dict()


@pytest.mark.matrix
def test_a_node_that_dies(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "TASK_UNITS", 1)
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    runner, results, is_removed, number = Ray(), [], False, 60
    for unit, result in runner.run(Sleep(tmp_path, 0.5), range(number)):
        results.append((unit, result))
        if not is_removed and len({path.suffix for path in tmp_path.iterdir()}) == 2:
            cluster.remove_node(second, allow_graceful=False)
            is_removed = True
    assert is_removed, "both nodes work"
    assert results == [(unit, unit * unit) for unit in range(number)]
    assert len(runner.notes) == 1
    assert runner.notes[0].startswith("1 node of the Ray cluster died (")


@pytest.mark.matrix
def test_an_end_before_the_end_cancels_the_rest(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "TASK_UNITS", 1)
    monkeypatch.setattr(ray_cluster, "TASKS_AHEAD", 20)
    run = iter(Ray().run(Sleep(tmp_path, 0.2), range(100)))
    next(run)
    run.close()  # what Ctrl-C does
    time.sleep(2)
    begun = len(list(tmp_path.iterdir()))
    time.sleep(2)
    assert len(list(tmp_path.iterdir())) == begun < 20
