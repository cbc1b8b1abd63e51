"""Scans of values in the page cache, all rules on: many small tensors, large ones, and a real model.

What reading large tensors costs depends on how their files came into the cache: Linux maps large folios by 2 MiB each, and a
page of 4 KiB each of a file that was just written. The share of large ones is printed beside it.
"""

from __future__ import annotations

import json
import mmap
import re
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.benchmarks.checkpoints import count_bytes, find_smollm2, write_dense, write_experts
from tests.benchmarks.figures import line
from tests.benchmarks.processes import (
    CKPTCHECK,
    PAIRS,
    environment,
    measure_anonymous,
    median,
    run_in_turn,
    temporary_folder,
)

JOBS = 2
WORKERS = (
    "import resource, sys; import ckptcheck\n"
    f"report = ckptcheck.scan(sys.argv[1], jobs={JOBS})\n"
    "assert report.verdict == 'clean', report.findings\n"
    "usage = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
    "print(usage.ru_utime + usage.ru_stime)\n"
)
"""Scans, and prints what the processes took that it waited for: its workers."""


def measure_large_folios(folder: Path) -> float:
    """Return the share of a checkpoint's bytes that are mapped by 2 MiB each (Linux): what reads large files depends on it."""
    huge = 0
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            touched = np.frombuffer(mapped, np.uint8)
            touched[:: mmap.PAGESIZE].max()
            rollup = Path("/proc/self/smaps_rollup").read_text()
            found = re.search(r"^FilePmdMapped:\s+(\d+) kB", rollup, re.MULTILINE)
            huge += 1024 * int(found[1]) if found else 0
            del touched
    return huge / count_bytes(folder)


def measure_workers(folder: Path) -> float:
    """Return the seconds of a core that the workers of a scan take."""
    command = [sys.executable, "-P", "-c", WORKERS, str(folder)]
    return float(
        subprocess.run(
            command, cwd=temporary_folder(), env=environment(), stdout=subprocess.PIPE, text=True, check=True
        ).stdout
    )


def main() -> None:
    """Measure and print."""
    experts, dense, real = write_experts(), write_dense(), find_smollm2()
    size = count_bytes(dense) / 1e9
    scan = [*CKPTCHECK, "scan", "--jobs", str(JOBS)]
    number = len(json.loads((experts / "model.safetensors.index.json").read_text())["weight_map"])
    print(f"\nvalues: all rules, --jobs {JOBS}, page cache; seconds of a core, whole processes")
    many, large = run_in_turn([*scan, str(experts)], [*scan, str(dense)])
    line(f"mixture of {number:,} tensors, seconds", f"{median(many).seconds:.2f}", "≤ 1.2")
    workers = statistics.median(measure_workers(dense) for _ in range(PAIRS))
    rate = workers / size
    line(f"{size:.1f} GB of large tensors: share of large folios", f"{measure_large_folios(dense):.2f}", "")
    line("the workers, seconds a GB", f"{rate:.3f}", "≤ 0.09")
    line("all else of the scan, seconds", f"{median(large).seconds - workers:.2f}", "≤ 0.35")
    line("peak of anonymous memory, MB", f"{measure_anonymous([*scan, str(dense)]):.0f}", "≤ 300")
    if real is not None:
        line("SmolLM2-135M-Instruct, seconds", f"{median(run_in_turn([*scan, str(real)])[0]).seconds:.2f}", "≤ 0.8")


if __name__ == "__main__":
    main()
