"""The table of faults and verbs: each command, each fault of the machine, and what must be true of the answer.

Whatever the machine does, a command ends with 0, 1 or 2 and a report or one sentence, or by the signal that was sent; it says 0
only where it looked at everything; a file that it was to write is the old one or the whole new one, and nothing lies beside it.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

VERBS: dict[str, tuple[str, ...]] = {
    "scan": ("scan", "sound", "--format", "json"),
    "manifest": ("manifest", "sound", "-o", "report"),
    "preflight": ("preflight", "job.yaml", "--format", "json"),
}
"""Verb → the command."""
OLD = b"what stood there before\n"


@dataclass(frozen=True)
class Fault:
    """What the machine does while the command runs."""

    limits: Mapping[int, int] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    is_shim: bool = False
    """Whether reads of the inputs go through failing_reads.c."""
    output: str = ""
    """Where stdout goes, in place of a pipe: a file, or ``closed``."""
    kill: tuple[int, float] | None = None
    """A signal, and after how many seconds it is sent."""
    must_not_pass: bool = False
    """Whether 0 would say of something that it was looked at which nobody could read or write."""


FAULTS: dict[str, Fault] = {
    "every read fails (EIO)": Fault(is_shim=True, must_not_pass=True),
    "later reads fail (EIO)": Fault(is_shim=True, environment={"FAULT_AFTER": "3"}),
    "files shrink": Fault(is_shim=True, environment={"FAULT_AFTER": "3", "FAULT_SHRINK": "1"}),
    "a full disk for stdout": Fault(output="/dev/full", must_not_pass=True),
    "closed stdout": Fault(output="closed", must_not_pass=True),
    "few descriptors": Fault(limits={resource.RLIMIT_NOFILE: 16}),
    "no file may grow (full disk)": Fault(limits={resource.RLIMIT_FSIZE: 64}),
    "no temporary folder": Fault(environment={"TMPDIR": "/nowhere", "TEMP": "/nowhere", "TMP": "/nowhere"}),
    "SIGTERM": Fault(kill=(signal.SIGTERM, 0.4)),
    "SIGKILL": Fault(kill=(signal.SIGKILL, 0.4)),
}
"""Fault → what happens."""


@dataclass(frozen=True)
class Answer:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str


def run_with_fault(here: Path, verb: str, fault: Fault, shim: Path | None) -> Answer:
    """Run a command in the folder of its inputs while the machine fails as told."""
    environment = {**os.environ, "COLUMNS": "100", **fault.environment}
    if fault.is_shim:
        environment |= {"LD_PRELOAD": str(shim), "FAULT_FOLDER": str(here)}

    def prepare() -> None:
        for limit, value in fault.limits.items():
            resource.setrlimit(limit, (value, value))
        if resource.RLIMIT_FSIZE in fault.limits:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as a full disk: an error, and no signal
        if fault.output == "closed":
            os.close(1)

    command = [sys.executable, "-m", "ckptcheck", *VERBS[verb]]
    out = open(fault.output, "wb") if fault.output.startswith("/") else subprocess.PIPE  # noqa: SIM115 - closed below
    try:
        process = subprocess.Popen(
            command, cwd=here, env=environment, stdout=out, stderr=subprocess.PIPE, preexec_fn=prepare
        )
        if fault.kill is not None:
            time.sleep(fault.kill[1])
            process.send_signal(fault.kill[0])
        stdout, stderr = process.communicate(timeout=120)
    finally:
        if not isinstance(out, int):
            out.close()
    return Answer(process.returncode, (stdout or b"").decode(), stderr.decode())


def find_wrong(here: Path, verb: str, fault: Fault, answer: Answer) -> str:
    """Return what is wrong with an answer; "" where nothing is."""
    import json

    sent = fault.kill[0] if fault.kill else 0
    if "Traceback" in answer.stderr or "Traceback" in answer.stdout:
        return f"a traceback: {answer.stderr[-600:]}"
    if answer.code not in (0, 1, 2) and not (sent and answer.code in (-sent, 128 + sent)):
        return f"exit code {answer.code}: {answer.stderr[-300:]}"
    if answer.code == 0 and fault.must_not_pass and not (fault.output and "-o" in VERBS[verb]):  # it writes to a file
        return "it ends with 0"
    if answer.code == 2 and not answer.stderr.strip() and not answer.stdout.strip() and not sent:
        return "it ends with 2 and says nothing"
    if answer.code in (0, 1) and answer.stdout and not fault.output:
        try:
            report = json.loads(answer.stdout)
        except ValueError:
            return f"no whole report: {answer.stdout[:200]}"
        if answer.code == 0 and isinstance(report, dict) and report.get("verdict") == "incomplete":
            return "it ends with 0, and its report is incomplete"
    written = (here / "report").read_bytes()
    if written != OLD and not (written.rstrip().endswith(b"}") and answer.code == 0):
        return f"half a file: {written[:80]!r}, exit code {answer.code}"
    beside = [path.name for path in here.glob(".report*")]
    if beside and sent != signal.SIGKILL:
        return f"it leaves {beside}"
    return ""
