"""Object stores and Ray: a scan's requests, its reading against obstore's own of the same bytes, and a node of Ray.

The store is on the loopback interface, in this process; whoever reads is a process of its own.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import ckptcheck
from ckptcheck.values.value_pass import READ_BYTES, REMOTE_READS
from tests.benchmarks.checkpoints import write_dense, write_headers
from tests.benchmarks.figures import line
from tests.benchmarks.headers import LAYERS
from tests.benchmarks.processes import CKPTCHECK, Cost, ratio, run, temporary_folder
from tests.doubles.object_server import ObjectServer

PAIRS = 2
SMALL_READ = 1 << 16
PLAIN = f"""
import obstore, sys
from concurrent.futures import ThreadPoolExecutor
from obstore.store import from_url
store = from_url(sys.argv[1], client_options={{"allow_http": True}})
ranges = [
    (one["path"], begin, min(begin + {READ_BYTES}, one["size"]))
    for page in store.list("ckpt") for one in page for begin in range(0, one["size"], {READ_BYTES})
]
assert ranges
with ThreadPoolExecutor({REMOTE_READS}) as pool:
    list(pool.map(lambda one: len(obstore.get_range(store, one[0], start=one[1], end=one[2])), ranges))
"""
"""Reads all objects as a scan does: as many bytes by as many requests at a time."""


def main() -> None:
    """Measure, and print the figures."""
    print("\nmachines: an object store on this machine, and Ray")
    if find_spec("obstore") is None:
        print("no store is read: there is no obstore")
    else:
        measure_store()
    if find_spec("ray") is None:
        print("no node is measured: there is no ray")
    else:
        measure_ray()


def measure_store() -> None:
    """Count what a scan of headers reads, and compare a scan's reading of values with obstore's."""
    variables: dict[str, str] = {}
    with ObjectServer() as server:
        server.set_environment(variables.__setitem__, temporary_folder())
        server.push("headers", write_headers(LAYERS)[0], "ckpt", in_memory=False)
        server.push("values", write_dense(), "ckpt", in_memory=False)
        run([*CKPTCHECK, "scan", "--headers-only", "s3://headers/ckpt"], variables)
        sizes = list(map(_count_bytes, server.reads))
        line(f"scan of headers of {LAYERS + 1} shards, requests", f"{server.requests}", "≤ 67")
        line("the same, MB", f"{sum(sizes) / 1e6:.1f}", "≤ 33")
        costs: list[tuple[Cost, Cost]] = []
        for _ in range(PAIRS):
            plain = run([sys.executable, "-c", PLAIN, "s3://values"], variables)
            server.reads.clear()
            costs.append((plain, run([*CKPTCHECK, "scan", "--values", "s3://values/ckpt"], variables)))
        small = sum(_count_bytes(read) <= SMALL_READ for read in server.reads if read[0].endswith(".safetensors"))
        speed = ratio(*zip(*costs, strict=True))
        line("scan of values, reads of 64 KiB or less", f"{small}", "≤ 0")
        line("scan of values / obstore alone, speed", f"{speed.wall:.2f}", "≥ 0.8")
        line("the same by seconds of a core", f"{speed.seconds:.2f}", "")


def _count_bytes(read: tuple[str, str, str]) -> int:
    found = re.fullmatch(r"bytes=(\d+)-(\d+)", read[1])
    return int(found[2]) + 1 - int(found[1]) if found else 0


def measure_ray() -> None:
    """Compare a node of Ray with threads of this process."""
    folder = write_dense()
    with one_node():
        ckptcheck.manifest(folder, runner=ckptcheck.Ray())  # starts the workers
        local = min(timed(lambda: ckptcheck.scan(folder, no_mmap=True)) for _ in range(PAIRS))
        spread = min(timed(lambda: ckptcheck.scan(folder, runner=ckptcheck.Ray())) for _ in range(PAIRS))
    line("Ray on one node / threads of one process, time", f"{spread / local:.2f}", "≤ 1.15")


@contextmanager
def one_node() -> Iterator[None]:
    """Run a cluster of this machine's processors for the block."""
    import ray

    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
