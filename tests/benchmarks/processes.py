"""Whole processes, start included, by the time that they keep a core busy: other work on the machine hardly changes that.

ckptcheck is measured as it is installed, with an index of its rules and its bytecode written. A checkout compiles the rules at
each start, which costs a small scan half of its time.
"""

from __future__ import annotations

import atexit
import compileall
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.paths import ROOT

CKPTCHECK = [sys.executable, "-P", "-m", "ckptcheck"]
PAIRS = 3
LAUNCHER = """
import os, sys, time
began = time.perf_counter()
quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, usage = os.wait4(pid, 0)
wall = time.perf_counter() - began
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000, wall, os.waitstatus_to_exitcode(status))
"""
"""Starts a command and waits for it. A process's peak includes what its parent had when it was started: here, next to nothing."""


class Cost(NamedTuple):
    """What a command took, with the processes that it started and waited for."""

    seconds: float
    """Of a core, in user and system mode."""
    megabytes: float
    """Peak of resident memory, mapped files included, of the largest process."""
    wall: float


@cache
def temporary_folder() -> Path:
    """Return a folder that is there until this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="ckptcheck-bench-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def install() -> Path:
    """Build the wheel, unpack it, compile it, and return the folder to import it from."""
    built, site = temporary_folder() / "dist", temporary_folder() / "site"
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(built), "-t", "wheel"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        archive.extractall(site)
    compileall.compile_dir(site, quiet=1)
    return site


def environment() -> dict[str, str]:
    """Return the environment in which Python imports the installed ckptcheck."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPATH": str(install())}


def run(command: Sequence[str], variables: dict[str, str] | None = None) -> Cost:
    """Run a command, without what it prints; stop unless it succeeds."""
    launched = subprocess.run(
        [sys.executable, "-S", "-c", LAUNCHER, *command],
        cwd=temporary_folder(),
        env=environment() | (variables or {}),
        capture_output=True,
        text=True,
        check=True,
    )
    *cost, code = launched.stdout.split()
    if code != "0":
        sys.exit(f"{' '.join(command)} exited with {code}: {launched.stderr}")
    return Cost(*map(float, cost))


def run_in_turn(*commands: Sequence[str], rounds: int = PAIRS) -> list[list[Cost]]:
    """Run commands in turn (A B A B …), so that a machine that slows down slows all, after one uncounted run of each."""
    for command in commands:
        run(command)
    costs = [[run(command) for command in commands] for _ in range(rounds)]
    return [list(column) for column in zip(*costs, strict=True)]


def median(costs: Sequence[Cost]) -> Cost:
    """Return the median of each number."""
    return Cost(*map(statistics.median, zip(*costs, strict=True)))


def ratio(first: Sequence[Cost], second: Sequence[Cost]) -> Cost:
    """Return the median of the pairs' ratios, of each number."""
    return median(
        [Cost(*(a / b for a, b in zip(one, other, strict=True))) for one, other in zip(first, second, strict=True)]
    )


def measure_anonymous(command: Sequence[str]) -> float:
    """Run a command; return the peak in MB of the anonymous memory that it and its children hold together (Linux)."""
    with subprocess.Popen(command, cwd=temporary_folder(), env=environment(), stdout=subprocess.DEVNULL) as process:
        peak, pause = 0.0, threading.Event()
        while process.poll() is None:
            peak = max(peak, _anonymous(process.pid))
            pause.wait(0.01)
    return peak


def _anonymous(process: int) -> float:
    children = Path(f"/proc/{process}/task").glob("*/children")
    total = 0
    try:
        for pid in (str(process), *(pid for path in children for pid in path.read_text().split())):
            rows = Path(f"/proc/{pid}/status").read_text().splitlines()
            total += sum(int(row.split()[1]) for row in rows if row.startswith("RssAnon"))
    except OSError:  # one of them has ended
        return 0.0
    return total / 1000
