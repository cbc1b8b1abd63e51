"""Which tasks of a Ray cluster are under way, and in which order they are handed out. A stand-in runs them; it needs no ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from ckptcheck.errors import EvidenceError
from ckptcheck.runners import ray_cluster
from ckptcheck.runners.ray_cluster import TaskQueues


@dataclass
class StandIn:
    """The functions of ray that the queues call. It finishes the last of the tasks that are waited for."""

    processors: dict[str, int]
    begun: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    """Node and units of each task that was begun."""
    cancelled: list[Any] = field(default_factory=list)
    node: str = ""
    is_stuck: bool = False
    """Whether no task ends, as where each waits for a processor that nobody has."""
    waited: list[float] = field(default_factory=list)

    def put(self, work: Any) -> Any:
        return work

    def remote(self, **options: Any) -> Any:
        return lambda call: self

    def options(self, scheduling_strategy: str) -> Any:
        return _Pinned(self, scheduling_strategy)

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": node, "Alive": True, "Resources": {"CPU": cpu}} for node, cpu in self.processors.items()]

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": sum(self.processors.values())}

    def wait(self, references: Sequence[Any], fetch_local: bool, timeout: float) -> tuple[list[Any], list[Any]]:
        self.waited.append(timeout)
        return ([], [*references]) if self.is_stuck else ([references[-1]], [])

    def cancel(self, reference: Any) -> None:
        self.cancelled.append(reference)


@dataclass
class _Pinned:
    cluster: StandIn
    node: str

    def remote(self, work: Any, units: list[int], version: str) -> tuple[int, ...]:
        self.cluster.begun.append((self.node, tuple(units)))
        return tuple(units)


class Squares:
    """Work whose units lie where `places` says, and have a byte each."""

    def __init__(self, places: Sequence[set[str]]) -> None:
        self.places = places

    def find_nodes(self, unit: int) -> frozenset[str]:
        return frozenset(self.places[unit])

    def weigh(self, unit: int) -> int:
        return 1


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "_pin", lambda node, soft: node)
    monkeypatch.setattr(ray_cluster, "TASK_UNITS", 2)
    monkeypatch.setattr(ray_cluster, "TASKS_AHEAD", 1)


def open_queues(cluster: StandIn, places: Sequence[set[str]]) -> TaskQueues[int]:
    work: Any = Squares(places)
    return TaskQueues(cluster, work, range(len(places)))


def drain(queues: TaskQueues[int]) -> list[int]:
    units: list[int] = []
    while (done := queues.wait_for_next()) is not None:
        assert tuple(done[0].units) == done[1]
        units += done[0].units
    return units


def test_the_node_of_later_files_works_from_the_start() -> None:
    cluster = StandIn({"a": 1, "b": 1})
    queues = open_queues(cluster, [{"a"}] * 6 + [{"b"}] * 6)
    queues.wait_for_next()
    assert {node for node, _ in cluster.begun[:2]} == {"a", "b"}
    assert [*drain(queues)] == [*range(2, 12)]
    assert {node: sorted(units for at, units in cluster.begun if at == node) for node in "ab"} == {
        "a": [(0, 1), (2, 3), (4, 5)],
        "b": [(6, 7), (8, 9), (10, 11)],
    }


def test_a_task_has_files_of_one_place() -> None:
    cluster = StandIn({"a": 1, "b": 1})
    assert drain(open_queues(cluster, [{"a"}, {"b"}, {"b"}, {"b"}, {"a"}])) == [*range(5)]
    assert sorted(units for _, units in cluster.begun) == [(0,), (1, 2), (3,), (4,)]


def test_copies_are_shared_by_the_processors_of_their_nodes() -> None:
    cluster = StandIn({"a": 3, "b": 1, "c": 0})
    drain(open_queues(cluster, [{"a", "b", "c"}] * 80))
    numbers = [sum(node == at for at, _ in cluster.begun) for node in "abc"]
    assert numbers == [30, 10, 0]


def test_no_node_runs_far_ahead_of_the_first_unfinished_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "MOST_AHEAD", 4)
    cluster = StandIn({"a": 1, "b": 100})
    queues = open_queues(cluster, [{"a"}] * 2 + [{"b"}] * 40)
    queues.wait_for_next()
    assert len(cluster.begun) <= 5
    assert drain(queues) == [*range(2, 42)]


def test_an_early_end_cancels_what_was_begun() -> None:
    cluster = StandIn({"a": 1, "b": 1})
    queues = open_queues(cluster, [{"a"}] * 6 + [{"b"}] * 6)
    handed = queues.wait_for_next()
    queues.cancel()
    assert handed is not None
    assert sorted([*cluster.cancelled, handed[1]]) == sorted(units for _, units in cluster.begun)


def test_a_cluster_that_ends_no_task_is_no_hang() -> None:
    cluster = StandIn({"a": 1}, is_stuck=True)
    with pytest.raises(EvidenceError, match="no node of the Ray cluster has finished a task for 30 minutes"):
        open_queues(cluster, [{"a"}] * 6).wait_for_next()
    assert [round(seconds) for seconds in cluster.waited] == [1800]


def test_large_work_has_larger_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "TASK_UNITS", 1000)
    monkeypatch.setattr(ray_cluster, "TASK_BYTES", 2)
    monkeypatch.setattr(ray_cluster, "MOST_TASK_BYTES", 8)
    monkeypatch.setattr(ray_cluster, "TASKS_EACH", 10)
    for number, size in ((10, 2), (40, 4), (1000, 8)):
        cluster = StandIn({"a": 1})
        drain(open_queues(cluster, [{"a"}] * number))
        assert len(cluster.begun[0][1]) == size
