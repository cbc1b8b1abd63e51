"""Object stores and runners: a scan's reading against obstore's plain reading of the same objects, parts, and Ray on one node."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import ckptcheck
from ckptcheck.values.value_pass import READ_BYTES, REMOTE_READS
from tests.benchmarks.figures import line
from tests.doubles.object_server import ObjectServer

SIZE = int(os.environ.get("SIZE_MB", "512")) << 20
SHARDS = 4
PAIRS = 3


def main() -> None:
    """Measure, and print the figures."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "ckpt"
        write_checkpoint(folder)
        if find_spec("obstore") is not None:
            measure_store(folder, Path(temporary))
        measure_parts(folder, Path(temporary) / "parts")
        if find_spec("ray") is not None:
            measure_ray(folder)


def write_checkpoint(folder: Path) -> None:
    """Write random values, SIZE bytes in all."""
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(SHARDS):
        rows = SIZE // SHARDS // 4 // 1024 // 4
        tensors = {
            f"layers.{number}.{part}.weight": random.standard_normal((rows, 1024), np.float32) for part in range(4)
        }
        save_file(tensors, folder / f"model-{number + 1:05}-of-{SHARDS:05}.safetensors")


def measure_store(folder: Path, temporary: Path) -> None:
    """Compare a scan's reading with obstore's: as many bytes by as many requests at a time."""
    import obstore
    from obstore.store import from_url

    with ObjectServer() as server:
        server.set_environment(os.environ.__setitem__, temporary)
        server.push("models", folder, "ckpt")

        def plain() -> None:
            store = from_url("s3://models", client_options={"allow_http": True})
            ranges = [
                (key, begin, min(begin + READ_BYTES, len(content)))
                for key, content in server.buckets["models"].items()
                for begin in range(0, len(content), READ_BYTES)
            ]
            with ThreadPoolExecutor(REMOTE_READS) as pool:
                list(pool.map(lambda one: len(obstore.get_range(store, one[0], start=one[1], end=one[2])), ranges))

        def digest() -> None:
            ckptcheck.manifest("s3://models/ckpt")

        def scan() -> None:
            ckptcheck.scan("s3://models/ckpt", values=True, select=["VAL001"])

        pairs = [(timed(plain), timed(digest), timed(scan)) for _ in range(PAIRS)]
        server.reads.clear()
        scan()
        requests = len(server.reads)
    speed, reading = min(seconds for seconds, _, _ in pairs), min(seconds for _, _, seconds in pairs)
    line("object store: obstore's plain reading, GB/s", f"{SIZE / speed / 1e9:.2f}", "")
    line("object store: scan of values / plain reading, speed", f"{speed / reading:.2f}", "≥ 0.9")
    line("object store: manifest / plain reading, speed", f"{speed / min(one for _, one, _ in pairs):.2f}", "")
    line(
        "object store: requests of a scan, for each of plain reading",
        f"{requests / -(-SIZE // READ_BYTES):.2f}",
        "≤ 1.5",
    )


def measure_parts(folder: Path, parts: Path) -> None:
    """Compare all parts, one after the other, and the joining, with one machine."""
    alone = min(timed(lambda: ckptcheck.scan(folder, no_mmap=True)) for _ in range(PAIRS))

    def write() -> None:
        shutil.rmtree(parts, ignore_errors=True)
        for index in range(7):
            ckptcheck.write_part("scan", folder, part=f"{index}/7", folder=parts)

    written = min(timed(write) for _ in range(PAIRS))
    joined = min(timed(lambda: ckptcheck.join(parts)) for _ in range(PAIRS))
    line("parts: seven one after the other / one machine, time", f"{written / alone:.2f}", "")
    line("parts: joining seven / one machine, time", f"{joined / alone:.2f}", "")


def measure_ray(folder: Path) -> None:
    """Compare a node of Ray with threads of this process."""
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
