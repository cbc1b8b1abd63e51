"""Runs Python in a child with limits on processor time and memory: what never ends or eats memory fails there, and not here."""

from __future__ import annotations

import subprocess
import sys

from tests.paths import ROOT

LIMITS = """
import resource
resource.setrlimit(resource.RLIMIT_CPU, ({0}, {0}))
resource.setrlimit(resource.RLIMIT_AS, ({1}, {1}))
"""


def run_limited(
    code: str, *arguments: object, seconds: int = 10, memory: int = 2 << 30, resident: int | None = None
) -> str:
    """Run code with `sys.argv[1:]` and return what it prints.

    seconds: of processor time, of which the imports take one or two. memory: bytes of address space, much of which libraries
    reserve without using it. resident: bytes in memory at most, looked at in the end: for files that are mapped.
    Fails with the child's errors where it exits with another code than 0 or a limit ends it.
    """
    check = f"\nassert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10 <= {resident}" if resident else ""
    command = [sys.executable, "-c", LIMITS.format(seconds, memory) + code + check, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr[-3000:]}"
    return done.stdout
