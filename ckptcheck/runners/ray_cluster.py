"""Runs work in a Ray cluster: each task computes some units on one of its nodes; who asked for the results joins them.

Ray repeats the tasks of a node that dies on another one. A node holds the units of its tasks and nothing else; this process holds
the results of the tasks that are ahead of the first unfinished one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import msgspec

from ckptcheck import __version__
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.runners.runner import R, U, Work, run_in_threads
from ckptcheck.text.formatting import count

TASK_BYTES = 1 << 26
"""Bytes of the units in a task, about."""
TASK_UNITS = 256
"""The most units in a task."""
RETRIES = 3
"""How often a task is repeated whose node has died."""
TASKS_AHEAD = 3
"""Tasks for each processor of the cluster that are begun and not yet joined."""
REMOTE_THREADS = 4
"""Threads of a task whose bytes come over the network."""
INSTALL = "pip install 'ckptcheck[ray]'"


class Ray:
    """Runs work in a Ray cluster."""

    def __init__(self, address: str = "ray") -> None:
        """Name the cluster; it is connected to when it is needed.

        Args:
            address: ``ray://head:10001`` or ``head:6379``; ``ray`` for the cluster of this machine or of RAY_ADDRESS.
        """
        self._address = "auto" if address == "ray" else address
        self.notes: list[str] = []
        """What happened to the cluster meanwhile, in sentences."""

    def run(self, work: Work[U, R], units: Sequence[U]) -> Iterator[tuple[U, R]]:
        """Yield each unit with its result, in order. Raises CkptcheckError without a cluster, EvidenceError where a task fails."""
        ray = self._connect()
        before = _list_nodes(ray)
        begin = ray.remote(num_cpus=1, max_retries=RETRIES)(compute_units).remote
        shared = ray.put(work)
        decoder = msgspec.msgpack.Decoder(work.result_type)
        waiting: deque[tuple[list[U], Any]] = deque()
        tasks = _group(work, units)
        try:
            while True:
                ahead = TASKS_AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
                while len(waiting) < ahead and (task := next(tasks, None)) is not None:
                    waiting.append((task, begin(shared, task, __version__)))
                if not waiting:
                    break
                task, reference = waiting[0]
                results = _wait_for(ray, reference)
                waiting.popleft()
                yield from zip(task, map(decoder.decode, results), strict=True)
        finally:
            for _, reference in waiting:  # Ctrl-C, or an error
                ray.cancel(reference)
            if lost := before - _list_nodes(ray):
                names = ", ".join(sorted(lost))
                self.notes.append(
                    f"{count(len(lost), 'node')} of the Ray cluster died ({names}); other nodes did the work again"
                )

    def _connect(self) -> Any:
        if find_spec("ray") is None:
            raise CkptcheckError("--on ray needs the package ray, which is not installed", hint=INSTALL)
        import ray

        if not ray.is_initialized():
            try:
                ray.init(address=self._address, log_to_driver=False, logging_level="error")
            except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
                raise CkptcheckError(
                    f"there is no Ray cluster at {self._address}: {' '.join(str(error).split())[:200]}",
                    hint="start one with `ray start --head`, or name one: --on ray://HOST:10001",
                ) from error
        return ray


def compute_units(work: Work[Any, Any], units: Sequence[Any], version: str) -> list[bytes]:
    """Compute units on a node, and return the results as msgpack. Raises RuntimeError where the node has another version."""
    if version != __version__:
        raise RuntimeError(f"the node has ckptcheck {__version__}, and {version} asks")
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


def _group(work: Work[U, R], units: Sequence[U]) -> Iterator[list[U]]:
    task: list[U] = []
    nbytes = 0
    for unit in units:
        task.append(unit)
        nbytes += work.weigh(unit)
        if nbytes >= TASK_BYTES or len(task) == TASK_UNITS:
            yield task
            task, nbytes = [], 0
    if task:
        yield task


def _wait_for(ray: Any, reference: Any) -> list[bytes]:
    """Return the result of a task. Raises EvidenceError."""
    from ray.exceptions import RayError

    try:
        results: list[bytes] = ray.get(reference)
    except RayError as error:
        cause = getattr(error, "cause", None) or error
        raise EvidenceError(
            f"a task of the Ray cluster failed: {' '.join(str(cause).split())[-300:]}",
            hint=f"install ckptcheck {__version__} on every node, and let each read the target",
        ) from error
    return results


def _list_nodes(ray: Any) -> set[str]:
    """Return the names of the nodes that are alive."""
    return {f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}" for node in ray.nodes() if node["Alive"]}
