"""A scan of headers: a checkpoint of 1 TB in sparse files, all rules on, against a reader that checks nothing.

Whole processes are timed, start included, in turn (A B A B …), so that a machine that slows down slows both. The median of
the pairs' ratios is what counts; peak memory is the operating system's account of the process.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.figures import line
from tests.paths import ROOT

SCAN = [sys.executable, "-m", "ckptcheck", "scan", "--headers-only"]
READ = [
    sys.executable,
    "-c",
    "import sys; from huggingface_hub import get_local_safetensors_metadata as read; read(sys.argv[1])",
]
PAIRS = 5


LAUNCHER = """
import os, sys, time
began = time.perf_counter()
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every start compiles what has changed since
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])
_, status, usage = os.wait4(pid, 0)
print(time.perf_counter() - began, usage.ru_maxrss / 1000, os.waitstatus_to_exitcode(status))
"""
"""Starts the command and waits for it. A process's peak includes what its parent had when it was started: here, next to nothing."""


def once(command: Sequence[str]) -> tuple[float, float]:
    """Run a command; return wall seconds and peak memory in MB."""
    launched = subprocess.run(
        [sys.executable, "-S", "-c", LAUNCHER, *command], stdout=subprocess.PIPE, text=True, check=True
    )
    seconds, peak, code = launched.stdout.split()
    if code != "0":
        sys.exit(f"{' '.join(command)} exited with {code}")
    return float(seconds), float(peak)


def in_turn(first: Sequence[str], second: Sequence[str]) -> tuple[list[float], list[float]]:
    """Time two commands in turn, after one uncounted run of each."""
    once(first), once(second)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(PAIRS):
        times[0].append(once(first)[0])
        times[1].append(once(second)[0])
    return times


def ratio(times: tuple[list[float], list[float]]) -> float:
    """The median of the pairs' ratios."""
    return statistics.median(a / b for a, b in zip(*times, strict=True))


def main() -> None:
    """Measure and print."""
    sys.path.insert(0, str(ROOT / "fixtures"))
    import large

    with tempfile.TemporaryDirectory() as work:
        big, quarter = Path(work) / "big", Path(work) / "quarter"
        tensors, fewer = large.write(big, 61), large.write(quarter, 15)
        tiny = ROOT / "fixtures/checkpoints/tiny-llama"
        print(f"headers: {tensors:,} tensors in 62 shards, 1.03 TB logical; {PAIRS} pairs of runs, medians")
        times = in_turn([*SCAN, str(big)], [*READ, str(big)])
        line("scan, seconds (start of Python included)", f"{statistics.median(times[0]):.2f}", "")
        line("scan / huggingface_hub.get_local_safetensors_metadata", f"{ratio(times):.2f}", "≤ 1.00")
        line("peak memory of the scan, MB", f"{once([*SCAN, str(big)])[1]:.0f}", "≤ 400")
        times = in_turn([*SCAN, str(big)], [*SCAN, str(quarter)])
        line(f"time for {tensors / fewer:.2f} × the tensors / time", f"{ratio(times):.2f}", "≤ 4.50")
        times = in_turn([sys.executable, "-m", "ckptcheck", "--version"], [*SCAN, str(tiny)])
        line("ckptcheck --version, seconds", f"{statistics.median(times[0]):.2f}", "≤ 0.30")
        line("scan of a tiny checkpoint, seconds", f"{statistics.median(times[1]):.2f}", "≤ 0.60")


if __name__ == "__main__":
    main()
