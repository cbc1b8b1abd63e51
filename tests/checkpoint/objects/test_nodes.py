"""Checkpoints on the own disks of a cluster's nodes. Each node is a folder here; tests/runners has a cluster of Ray."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ckptcheck
from ckptcheck.checkpoint.objects import bucket_of_nodes
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.runners.ray_cluster import Ray
from tests.paths import FIXTURES

LLAMA = FIXTURES / "checkpoints" / "tiny-llama-sharded"
RUN = FIXTURES / "megatron" / "tp2-pp2"
FIRST, SECOND, THIRD = (f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3))


class Nodes(Ray):
    """Two nodes, each of which sees its folder where this machine sees its own."""

    def __init__(self, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._folders = folders
        self._running = ""
        self.asked: list[tuple[str, str]] = []
        """Who asked which node for bytes; "" for this machine."""
        self.is_lost = False
        """Whether no node answers any more."""
        monkeypatch.setattr(bucket_of_nodes, "find_own_node", lambda: self._running)
        monkeypatch.setattr(bucket_of_nodes, "call_on_node", self._call)

    def _call(self, node: str, call: Callable[..., bytes], *arguments: Any) -> bytes:
        self.asked.append((self._running, node))
        if self.is_lost:
            raise OSError(errno.EIO, "the node of the Ray cluster that has it does not answer")
        return call(*arguments)

    def name_nodes(self) -> dict[str, str]:
        return {node: f"10.0.0.{number}:7" for number, node in enumerate(self._folders, 1)}

    def ask_nodes(self, call: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        return {node: call(str(folder), *arguments[1:]) for node, folder in self._folders.items()}

    def run(self, work: Any, units: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        for unit in units:
            there = pickle.loads(pickle.dumps(work))
            try:
                self._running = min(work.find_nodes(unit) or self._folders)
                result = msgspec.msgpack.encode(there.compute(unit))
            finally:
                self._running = ""
            yield unit, msgspec.msgpack.decode(result, type=work.result_type)


@pytest.fixture
def spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Path, Nodes]]:
    """Return a function that puts files of a checkpoint on this machine and two nodes: the target here, and the runner."""

    def put(source: Path, here: set[str], a: set[str], b: set[str]) -> tuple[Path, Nodes]:
        for place, names in (("here", here), ("a", a), ("b", b)):
            (tmp_path / place).mkdir()
            for name in names:
                (tmp_path / place / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source / name, tmp_path / place / name)
        return tmp_path / "here", Nodes({"a": tmp_path / "a", "b": tmp_path / "b"}, monkeypatch)

    return put


def files_of(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


SMALL = files_of(LLAMA) - {FIRST, SECOND, THIRD}


def form(report: ckptcheck.Report) -> dict[str, Any]:
    """The report without its target and what it says of the cluster."""
    found = {**report.to_dict(), "target": ""}
    return {**found, "sections": [one for one in found.get("sections", []) if one["title"] != "Cluster"]}


def cluster(report: ckptcheck.Report) -> list[str]:
    return [line for section in report.sections if section.title == "Cluster" for line in section.lines]


def test_each_node_has_some_of_the_shards(spread: Callable[..., tuple[Path, Nodes]]) -> None:
    target, runner = spread(LLAMA, SMALL, SMALL | {FIRST, THIRD}, {SECOND})
    report = ckptcheck.scan(target, runner=runner)
    assert form(report) == form(ckptcheck.scan(LLAMA))
    assert report.verdict == "clean"
    assert cluster(report) == [
        f"{target} lies on the disks of the nodes: 10.0.0.1:7 has {len(SMALL) + 2} files, 10.0.0.2:7 has 1 file"
    ]
    assert {who for who, _ in runner.asked} == {""}, "each batch was read on the node that has its file"


def test_a_run_of_megatron_and_the_other_verbs(spread: Callable[..., tuple[Path, Nodes]], tmp_path: Path) -> None:
    names = files_of(RUN)
    other = {name for name in names if name.endswith(("__1_0.distcp", "__3_0.distcp"))}
    target, runner = spread(RUN, set(), names - other, other)
    assert form(ckptcheck.scan(target, runner=runner)) == form(ckptcheck.scan(RUN))
    assert ckptcheck.manifest(target, runner=runner).tensors == ckptcheck.manifest(RUN).tensors
    ckptcheck.manifest(RUN, tmp_path / "m.json")
    assert form(ckptcheck.verify(target, tmp_path / "m.json", runner=runner)) == form(
        ckptcheck.verify(RUN, tmp_path / "m.json")
    )
    differences = ckptcheck.diff(RUN, target, runner=runner)
    assert (differences.verdict, differences.headline) == ("clean", ckptcheck.diff(RUN, RUN).headline)


def test_a_single_shard_and_an_index(spread: Callable[..., tuple[Path, Nodes]]) -> None:
    target, runner = spread(LLAMA, set(), SMALL | {FIRST, THIRD}, {SECOND})
    for name in (SECOND, "model.safetensors.index.json"):
        assert form(ckptcheck.scan(target / name, runner=runner)) == form(ckptcheck.scan(LLAMA / name))
    with pytest.raises(CkptcheckError, match="does not exist"):
        ckptcheck.scan(target / "model-9.safetensors", runner=runner)


def test_a_file_that_no_node_has(spread: Callable[..., tuple[Path, Nodes]]) -> None:
    target, runner = spread(LLAMA, SMALL, SMALL | {FIRST}, {SECOND})
    report = ckptcheck.scan(target, runner=runner)
    assert [(one.code, one.severity) for one in report.findings if THIRD in one.message] == [("IDX001", "error")]
    assert report.verdict != "clean"


def test_a_file_that_only_this_machine_has(spread: Callable[..., tuple[Path, Nodes]]) -> None:
    target, runner = spread(LLAMA, SMALL | {THIRD}, SMALL | {FIRST}, {SECOND})
    report = ckptcheck.scan(target, runner=runner)
    assert report.verdict == "incomplete"
    assert report.error == f"could not read {THIRD}: no node of the Ray cluster has it"
    assert cluster(report)[1:] == [f"{THIRD}: this machine has it, and no node does"]


def test_a_file_that_the_nodes_have_in_different_sizes(
    spread: Callable[..., tuple[Path, Nodes]], tmp_path: Path
) -> None:
    target, runner = spread(LLAMA, SMALL, SMALL | {FIRST, THIRD}, {SECOND, THIRD})
    whole = (tmp_path / "b" / THIRD).read_bytes()
    (tmp_path / "b" / THIRD).write_bytes(whole[:-100])
    report = ckptcheck.scan(target, runner=runner)
    problem = (
        "the nodes have different files of this name: "
        f"10.0.0.1:7 has {len(whole):,} bytes of it, 10.0.0.2:7 has {len(whole) - 100:,} bytes of it"
    )
    assert report.verdict == "incomplete"
    assert report.error is not None
    assert f"{THIRD}: {problem}" in report.error
    assert cluster(report)[1:] == [f"{THIRD}: {problem}"]


def test_the_newest_of_copies_is_read(spread: Callable[..., tuple[Path, Nodes]], tmp_path: Path) -> None:
    target, runner = spread(LLAMA, SMALL, SMALL | {FIRST, THIRD}, {SECOND, THIRD})
    stale = tmp_path / "b" / THIRD
    stale.write_bytes(bytes(stale.stat().st_size))
    time = (tmp_path / "a" / THIRD).stat().st_mtime_ns
    os.utime(stale, ns=(time - 1, time - 1))
    assert form(ckptcheck.scan(target, runner=runner)) == form(ckptcheck.scan(LLAMA))
    os.utime(stale, ns=(time + 1, time + 1))
    assert ckptcheck.scan(target, runner=runner).verdict != "clean"


def test_a_node_that_is_lost_meanwhile(
    spread: Callable[..., tuple[Path, Nodes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, runner = spread(LLAMA, SMALL, SMALL | {FIRST, THIRD}, {SECOND})
    opened = ckptcheck.manifest(target, runner=runner)
    assert opened.tensors
    run = Nodes.run

    def lose(self: Nodes, work: Any, units: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        self.is_lost = True
        monkeypatch.setattr(type(work), "find_nodes", lambda work, unit: frozenset({"a"}))  # as Ray repeats its tasks
        return run(self, work, units)

    monkeypatch.setattr(Nodes, "run", lose)
    report = ckptcheck.scan(target, runner=runner)
    assert report.verdict == "incomplete"
    assert report.error == f"could not read {SECOND}: the node of the Ray cluster that has it does not answer"


def test_nodes_that_see_the_same_files_read_them_as_before(spread: Callable[..., tuple[Path, Nodes]]) -> None:
    every = SMALL | {FIRST, SECOND, THIRD}
    target, runner = spread(LLAMA, every, every, every)
    report = ckptcheck.scan(target, runner=runner)
    assert not cluster(report)
    assert form(report) == form(ckptcheck.scan(LLAMA))


def test_a_folder_that_no_node_has(spread: Callable[..., tuple[Path, Nodes]]) -> None:
    target, runner = spread(LLAMA, SMALL | {FIRST, SECOND, THIRD}, set(), set())
    with pytest.raises(EvidenceError) as caught:
        ckptcheck.scan(target, runner=runner)
    assert caught.value.message == f"no node of the Ray cluster has {target}, only this machine"
    assert caught.value.hint == "mount it on every node, or scan without --on ray"


def test_no_link_leads_out_of_a_node_s_folder(spread: Callable[..., tuple[Path, Nodes]], tmp_path: Path) -> None:
    target, runner = spread(LLAMA, set(), SMALL | {FIRST, THIRD}, {SECOND})
    (tmp_path / "secret").write_bytes((tmp_path / "b" / SECOND).read_bytes())
    (tmp_path / "b" / SECOND).unlink()
    (tmp_path / "b" / SECOND).symlink_to(tmp_path / "secret")
    assert "IDX001" in {one.code for one in ckptcheck.scan(target, runner=runner).findings}
    assert form(ckptcheck.scan(target, follow_links=True, runner=runner)) == form(ckptcheck.scan(LLAMA))


def test_a_fleet_says_of_each_where_it_lies(spread: Callable[..., tuple[Path, Nodes]]) -> None:
    target, runner = spread(LLAMA, SMALL, SMALL | {FIRST, THIRD}, {SECOND})
    reports = ckptcheck.scan([target, target / SECOND], runner=runner)
    assert [len(cluster(report)) for report in reports] == [1, 1]
