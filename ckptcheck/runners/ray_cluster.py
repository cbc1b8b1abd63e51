"""Runs work in a Ray cluster: each task computes some units on one node; the caller joins the results.

If a node dies, Ray repeats its tasks on another one. A node holds only the units of its tasks; this process holds the results of
the tasks ahead of the first unfinished one. Units whose files lie on the disks of some nodes go to one of these nodes
(`Work.find_nodes`).
"""

from __future__ import annotations

import contextlib
import errno
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, Generic, TypeVar

import msgspec

from ckptcheck import __version__
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.runners.child_python import run_python
from ckptcheck.runners.runner import MalformedResult, R, U, Work, decode_results, run_in_threads
from ckptcheck.text.formatting import count, format_duration

T = TypeVar("T")

TASK_BYTES, MOST_TASK_BYTES = 1 << 26, 1 << 28
"""About the least and the most bytes per task. Each task costs some milliseconds, so more work means larger tasks."""
TASKS_EACH = 16
"""Tasks per processor beyond which the tasks become larger."""
TASK_UNITS = 256
"""The most units in a task."""
RETRIES = 3
"""Most retries of a task whose node has died."""
TASKS_AHEAD = 3
"""Tasks per processor of the cluster that have begun and are not yet joined."""
MOST_AHEAD = 4096
"""Most tasks ahead of the first unfinished one, so that other nodes can go on while one node still reads its files."""
CONNECT_SECONDS = 60.0
"""Seconds for connecting to a cluster. Ray itself waits half as long and then ends the process, or waits without end."""
NODE_SECONDS = 120.0
"""Seconds for a node to answer the questions before the work."""
REMOTE_THREADS = 4
"""Threads of a task whose bytes come over the network."""
LEAST_PATIENCE, SLOWEST = 1800.0, 1e6
"""Seconds within which one of the running tasks has to end: a base, and the time of the largest at SLOWEST bytes per second."""
INSTALL = "pip install 'ray[client]'"
NOWHERE = "/"
"""The working directory for `ray.init`: Ray's workers import from the one that it is called in, before all other folders."""


class Ray:
    """Runs work in a Ray cluster."""

    def __init__(self, address: str = "ray") -> None:
        """Name the cluster; the connection opens on first use.

        Args:
            address: ``ray://head:10001`` or ``head:6379``; ``ray`` for the cluster of this machine or of RAY_ADDRESS.
        """
        self._address = "auto" if address == "ray" else address
        self.notes: list[str] = []
        """Events in the cluster, in sentences."""

    def run(self, work: Work[U, R], units: Sequence[U]) -> Iterator[tuple[U, R]]:
        """Yield each unit with its result, in order. Raises CkptcheckError without a cluster, EvidenceError if a task fails."""
        ray = self._connect()
        before = list_nodes(ray)
        queues = TaskQueues(ray, work, units)
        try:
            while (done := queues.wait_for_next()) is not None:
                task, reference = done
                yield from decode_results(work, task.units, _get(ray, reference))
        except MalformedResult as error:
            raise EvidenceError(
                f"a node of the Ray cluster answered with no results of {work.name}: {error}",
                hint=f"install ckptcheck {__version__} on every node, and check that nothing else runs in its place",
            ) from error
        finally:
            queues.cancel()  # Ctrl-C, or an error
            after = list_nodes(ray)
            if lost := sorted(name for node, name in before.items() if node not in after):
                self.notes.append(
                    f"{count(len(lost), 'node')} of the Ray cluster died ({', '.join(lost)}); other nodes did the work again"
                )

    def ask_nodes(self, call: Callable[..., T], *arguments: Any) -> dict[str, T]:
        """Call a function on every node, and return node → its answer; a note names nodes that give none.

        Raises CkptcheckError without a cluster, EvidenceError if the function fails.
        """
        ray = self._connect()
        nodes = list_nodes(ray)
        asked = {node: begin_on_node(node, call, *arguments) for node in nodes}
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=NODE_SECONDS)
        answers: dict[str, T] = {}
        for node, reference in asked.items():
            try:
                answers[node] = ray.get(reference, timeout=0)
            except ray.exceptions.RayTaskError as error:
                raise _explain_task(error) from error
            except ray.exceptions.RayError:
                ray.cancel(reference)
        if silent := sorted(nodes[node] for node in nodes.keys() - answers.keys()):
            self.notes.append(f"{count(len(silent), 'node')} of the Ray cluster did not answer ({', '.join(silent)})")
        return answers

    def name_nodes(self) -> dict[str, str]:
        """Map each node that is alive to its name for people. Raises CkptcheckError without a cluster."""
        return list_nodes(self._connect())

    def _connect(self) -> Any:
        if find_spec("ray") is None:
            raise CkptcheckError("--on ray needs the package ray, which is not installed", hint=INSTALL)
        import ray

        if not ray.is_initialized():
            try_to_connect(self._address)
            try:
                with contextlib.chdir(NOWHERE):
                    ray.init(address=self._address, log_to_driver=False, logging_level="error")
            except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
                raise _explain_no_cluster(self._address, str(error)) from error
        return ray


def try_to_connect(address: str) -> None:
    """Connect to a cluster in a separate process, because ray.init may hang or end the process if a raylet has died.

    Raises CkptcheckError if there is no cluster, or if it does not answer within CONNECT_SECONDS.
    """
    try:
        tried = run_python(["-c", TRY, address], timeout=CONNECT_SECONDS, cwd=NOWHERE)
    except subprocess.TimeoutExpired:
        why = f"it did not accept a driver within {CONNECT_SECONDS:g} seconds"
    else:
        if tried.returncode == 0:
            return
        if tried.returncode == NO_CLUSTER:
            raise _explain_no_cluster(address, tried.stdout.decode("utf-8", "replace"))
        said = tried.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        why = f"Ray gave up: {said[:300]}" if said else f"Ray ended with exit code {tried.returncode}"
    raise CkptcheckError(
        f"the Ray cluster at {address} does not answer: {why}",
        hint="run `ray status`; if a raylet has died, run `ray stop` and `ray start` on its machine",
    )


NO_CLUSTER = 3
TRY = f"""
import os, sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")
except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
    print(error, flush=True)
    os._exit({NO_CLUSTER})
ray.shutdown()
"""
"""The code of the separate process that connects first: without a cluster it ends with NO_CLUSTER and a message."""


def _explain_no_cluster(address: str, said: str) -> CkptcheckError:
    return CkptcheckError(
        f"there is no Ray cluster at {address}: {' '.join(said.split())[:200]}",
        hint="start one with `ray start --head`, or name one: --on ray://HOST:10001",
    )


def compute_units(work: Work[Any, Any], units: Sequence[Any], version: str) -> list[bytes]:
    """Compute units on a node, and return the results as msgpack. Raises RuntimeError if the node has another version."""
    if version != __version__:
        raise RuntimeError(f"the node has ckptcheck {__version__}, and the machine that asks has {version}")
    threads = REMOTE_THREADS if work.remote_jobs else 1
    return [msgspec.msgpack.encode(result) for _, result in run_in_threads(work.compute, units, threads)]


def parse_runner(text: str) -> Ray:
    """Return the runner that ``--on`` names. Raises CkptcheckError.

    >>> type(parse_runner("ray://head:10001")).__name__
    'Ray'
    """
    if text != "ray" and not text.startswith("ray://"):
        raise CkptcheckError(f"--on takes no {text!r}", hint="write --on ray, or --on ray://HOST:10001")
    return Ray(text)


def begin_on_node(node: str, call: Callable[..., Any], *arguments: Any) -> Any:
    """Begin to call a function on a node, beside the tasks there, and return the reference of its result."""
    return _find_remote(call).options(scheduling_strategy=_pin(node, soft=False)).remote(*arguments)


def call_on_node(node: str, call: Callable[..., T], *arguments: Any) -> T:
    """Call a function on a node, from this process or from a task, and return its result. Raises OSError if that fails."""
    import ray

    try:
        result: T = ray.get(begin_on_node(node, call, *arguments), timeout=NODE_SECONDS)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, OSError):
            raise cause from error
        raise OSError(errno.EIO, "the node of the Ray cluster that has it does not answer") from error
    return result


def find_own_node() -> str:
    """Return the node that this task runs on."""
    import ray

    node: str = ray.get_runtime_context().get_node_id()
    return node


@cache
def _find_remote(call: Callable[..., Any]) -> Any:
    """Return Ray's remote form of a function, cached so that Ray sends it to the cluster once."""
    import ray

    return ray.remote(num_cpus=0, max_retries=1)(call)


def _pin(node: str, *, soft: bool) -> Any:
    """Return the strategy that puts a task on a node; soft: on another one if the node is dead."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=soft)


@dataclass
class Task(Generic[U]):
    """Units that one task computes."""

    units: list[U]
    nodes: frozenset[str]
    """The nodes that have the files of the units; empty if any node can read them."""


class TaskQueues(Generic[U]):
    """The tasks of some work, handed out in their order. Each node has some running tasks at any time."""

    def __init__(self, ray: Any, work: Work[U, Any], units: Sequence[U]) -> None:
        self._ray = ray
        processors = max(1, int(ray.cluster_resources().get("CPU", 1)))
        share = sum(map(work.weigh, units)) // (TASKS_EACH * processors)
        self._tasks = list(_group(work, units, max(TASK_BYTES, min(MOST_TASK_BYTES, share))))
        largest = max((sum(map(work.weigh, task.units)) for task in self._tasks), default=0)
        self._patience = LEAST_PATIENCE + largest // SLOWEST
        self._next = 0
        self._references: dict[int, Any] = {}
        self._done: set[int] = set()
        self._work = ray.put(work)
        self._compute = ray.remote(num_cpus=1, max_retries=RETRIES)(compute_units)
        alive = [node for node in ray.nodes() if node["Alive"]]
        self._processors = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in alive}
        self._waiting: dict[str, deque[int]] = {}
        self._begun: dict[str, deque[int]] = {}
        given = dict.fromkeys(self._processors, 0)
        for number, task in enumerate(self._tasks):
            able = [node for node in sorted(task.nodes) if self._processors.get(node)]
            chosen = min(able, key=lambda node: given[node] / self._processors[node], default="")
            if chosen:
                given[chosen] += sum(map(work.weigh, task.units))
            self._waiting.setdefault(chosen, deque()).append(number)

    def wait_for_next(self) -> tuple[Task[U], Any] | None:
        """Return the next task and the reference of its result when it is done; None after the last one."""
        if self._next == len(self._tasks):
            return None
        self._begin()
        while self._next not in self._done:
            # tasks of one node end roughly in order, so watching the oldest task of each node is enough
            oldest = {self._references[numbers[0]]: numbers for numbers in self._begun.values() if numbers}
            ended = self._ray.wait(list(oldest), fetch_local=False, timeout=self._patience)[0]
            if not ended:
                raise EvidenceError(
                    f"no node of the Ray cluster has finished a task for {format_duration(self._patience)}",
                    hint="run `ray status`: a task needs one free processor; without --on ray, this machine does the work",
                )
            for reference in ended:
                self._done.add(oldest[reference].popleft())
            self._begin()
        task, number = self._tasks[self._next], self._next
        self._next += 1
        self._done.discard(number)
        return task, self._references.pop(number)

    def cancel(self) -> None:
        """Cancel the tasks that have begun and were not handed out."""
        for reference in self._references.values():
            self._ray.cancel(reference)
        self._references.clear()

    def _begin(self) -> None:
        """Begin tasks: a few for each processor of a node, or of the cluster if any node will do."""
        for node, numbers in self._waiting.items():
            begun = self._begun.setdefault(node, deque())
            processors = self._processors[node] if node else int(self._ray.cluster_resources().get("CPU", 1))
            begin = self._compute.options(scheduling_strategy=_pin(node, soft=True)) if node else self._compute
            while numbers and len(begun) < TASKS_AHEAD * max(1, processors) and numbers[0] < self._next + MOST_AHEAD:
                number = numbers.popleft()
                self._references[number] = begin.remote(self._work, self._tasks[number].units, __version__)
                begun.append(number)


def _group(work: Work[U, Any], units: Sequence[U], most: int) -> Iterator[Task[U]]:
    """Group successive units whose files lie on the same nodes. most: about the bytes of a task."""
    task: Task[U] | None = None
    nbytes = 0
    for unit in units:
        nodes = work.find_nodes(unit)
        if task is not None and (nbytes >= most or len(task.units) == TASK_UNITS or task.nodes != nodes):
            yield task
            task = None
        if task is None:
            task, nbytes = Task([], nodes), 0
        task.units.append(unit)
        nbytes += work.weigh(unit)
    if task is not None:
        yield task


def _get(ray: Any, reference: Any) -> list[bytes]:
    """Return the result of a task. Raises EvidenceError."""
    try:
        results: list[bytes] = ray.get(reference)
    except ray.exceptions.RayError as error:
        raise _explain_task(error) from error
    return results


def _explain_task(error: BaseException) -> EvidenceError:
    cause = getattr(error, "cause", None) or error
    return EvidenceError(
        f"a task of the Ray cluster failed: {' '.join(str(cause).split())[-300:]}",
        hint=f"install ckptcheck {__version__} on every node, and let each read the target",
    )


def list_nodes(ray: Any) -> dict[str, str]:
    """Map each node that is alive to its name for people: its address and port."""
    return {
        node["NodeID"]: f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
        for node in ray.nodes()
        if node["Alive"]
    }
