"""Checks many made-up inputs in one child process with limits, and names the seed that broke one.

A child reads a batch of seeds: a fork for each input would take longer than most inputs do. What raises, takes more than SECONDS
of processor time or MEMORY, or dies by a signal is a failure. Where a child dies, the next one goes on behind that seed.

What a pool of threads would do is done at once, but for one input of AS_RUN.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from ckptcheck.linter.rule import Rule

SECONDS, MEMORY = 5, 500 << 20
"""Processor time and memory of one input under 1 MB."""
BATCH = 1000
AS_RUN = 20
MOST_FAILURES = 100
SHARED_MEMORY = Path("/dev/shm")
STATM = Path("/proc/self/statm")

Check = Callable[[int, Path], object]
"""Makes up the input of a seed in an empty folder and reads it. Raises what a door should not raise."""


def run_batch(check: Check, seeds: range, folder: Path) -> list[str]:
    """Check a batch in a child; return what failed, a line each."""
    sys.stdout.flush()
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        try:
            _check_seeds(check, seeds, folder, write_end)
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, errors="replace") as stream:
        lines = stream.read().splitlines()
    _, status = os.waitpid(child, 0)
    failed = [line for line in lines if not line.startswith("+")]
    if status:
        last = int([line for line in lines if line.startswith("+")][-1])
        failed.append(f"seed {last}: signal {status & 127}")
        failed += run_batch(check, range(last + 1, seeds.stop), folder) if last + 1 < seeds.stop else []
    return failed


def _check_seeds(check: Check, seeds: range, folder: Path, out: int) -> None:
    for seed in seeds:
        os.write(out, f"+{seed}\n".encode())
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        used = int(STATM.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, -1))
        begun = time.process_time()
        resource.setrlimit(resource.RLIMIT_CPU, (int(begun) + SECONDS + 2, -1))
        try:
            if seed % AS_RUN == 0:
                check(seed, folder)
            else:
                with mock.patch.object(ThreadPoolExecutor, "_adjust_thread_count", _run_at_once):
                    check(seed, folder)
        except BaseException as error:
            text = " ".join(str(error).split())[:600].encode("utf-8", "replace").decode()
            os.write(out, f"seed {seed}: {type(error).__name__}: {text}\n".encode())
        if (taken := time.process_time() - begun) > SECONDS:
            os.write(out, f"seed {seed}: it took {taken:.1f} s\n".encode())


def copy_flat(source: Path, target: Path) -> Path:
    """Copy the files of a folder, which are read once; return the target."""
    target.mkdir()
    for name, content in _read_files(source).items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(content)
    return target


@cache
def _read_files(source: Path) -> dict[str, bytes]:
    return {str(file.relative_to(source)): file.read_bytes() for file in sorted(source.rglob("*")) if file.is_file()}


def _run_at_once(pool: Any) -> None:
    pool._work_queue.get_nowait().run()


def run_seeds(check: Check, first: int, count: int, prepare: Callable[[Path], object] | None = None) -> int:
    """Check all seeds, write which ones failed, and return how many did.

    prepare: makes what all inputs are made from, in the folder above theirs.
    """
    failed = 0
    import numpy  # noqa: F401 - what children need is loaded before the first one

    from tests.fuzz import RULES

    load_rules(RULES)
    place = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place) as temporary:
        if prepare is not None:
            prepare(Path(temporary))
        for start in range(first, first + count, BATCH):
            lines = run_batch(check, range(start, min(start + BATCH, first + count)), Path(temporary) / "input")
            sys.stdout.write("".join(f"{line}\n" for line in lines))
            sys.stdout.flush()
            failed += len(lines)
            if failed >= MOST_FAILURES:
                break
    sys.stdout.write(f"{count} seeds from {first}: {failed} failed\n")
    return failed


def load_rules(rules: list[Rule]) -> None:
    """Run the files of all rules, which are read when a rule first runs: each child would do it anew."""
    for rule in rules:
        with suppress(Exception):  # nothing is no evidence
            rule.check(None)
