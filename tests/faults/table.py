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
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

VERBS: dict[str, tuple[str, ...]] = {
    "scan": ("scan", "sound", "--format", "json"),
    "manifest": ("manifest", "sound", "-o", "report.jsonl"),
    "preflight": ("preflight", "job.yaml", "--format", "json"),
    "scan --values": ("scan", "sound", "--values", "--format", "json"),
    "scan of a run": ("scan", "run", "--values", "--format", "json"),
    "diff": ("diff", "sound", "other", "--format", "json"),
    "verify": ("verify", "sound", "manifest.json", "--format", "json"),
    "parity judge": ("parity", "judge", "rollouts.jsonl", "--format", "json"),
    "parity convert": ("parity", "convert", "batch.pkl", "-o", "report.jsonl"),
    "gate": ("gate", "job.yaml", "--stages", "preflight,scan", "--model", "sound", "--format", "json"),
    "series": ("series", "saves", "--cache", "kept.json", "--format", "json"),
    "sign": ("sign", "sound", "--private-key", "key.pem", "--signature", "report.jsonl"),
    "identity": ("identity", "sound", "--format", "json"),
    "join": ("join", "parts", "--format", "json"),
    "report": ("report", "stored.json", "-o", "report.jsonl"),
    "scan of deltas": ("scan", "sound+delta", "--values", "--format", "json"),
    "diff of deltas": ("diff", "sound+delta", "stepped", "--format", "json"),
}
"""Verb → the command."""
QUICK = ("scan", "manifest", "preflight")
"""The verbs of each run of the tests; `make matrix` runs all."""
MARK = "CKPTCHECK_FAULT_MARK"
LONGEST, TO_LEAVE = 120, 20
"""Seconds that a command may take, and those in which its children end behind it."""
METADATA = "iter_0000100/.metadata"
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
    signal: int = 0
    """A signal that is sent while it runs."""
    at: float = 0.0
    """When it is sent: the share of the time that the command takes without a fault."""
    secret: str = ""
    """What must not be in the answer."""
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
    "SIGTERM": Fault(signal=signal.SIGTERM, at=0.6),
    "SIGKILL": Fault(signal=signal.SIGKILL, at=0.6),
}
"""Fault → what happens."""
IN_PLACE = {
    "a link out of the folder": "link",
    "a pipe": "pipe",
    "a link to /dev/zero": "endless",
    "another file": "another",
}
"""What takes the place of a file → its name beside the inputs."""
MORE_FAULTS: dict[str, Fault] = {
    "a read-only file system": Fault(is_shim=True, environment={"FAULT_READONLY": "{here}"}),
    "no /dev/shm": Fault(is_shim=True, environment={"FAULT_MISSING": "/dev/shm"}),
    "little memory": Fault(limits={resource.RLIMIT_AS: 320 << 20}),
    "too little memory": Fault(limits={resource.RLIMIT_AS: 90 << 20}, must_not_pass=True),
    **{
        f"{what} takes the place of a file, at read {number}": Fault(
            is_shim=True,
            environment={"FAULT_AFTER": str(number), "FAULT_SWAP": f"{{here}}/{name}:{{here}}/{{input}}"},
            secret="the secret beside it",
        )
        for what, name in IN_PLACE.items()
        for number in (1, 4)
    },
    **{
        f"{kind.name} at {share:.0%}": Fault(signal=kind, at=share)
        for kind in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT)
        for share in (0.02, 0.2, 0.4, 0.8, 0.95)
        if kind != signal.SIGINT or share > 0.1  # at first it is Python that starts, and shows where it was
    },
}
"""Faults that only `make matrix` makes."""
DELTA = "delta/model-00000-of-00001.safetensors"
INPUTS = {
    "preflight": "job.yaml",
    "parity judge": "rollouts.jsonl",
    "parity convert": "batch.pkl",
    "scan of a run": "run/{metadata}",
    "series": "saves/checkpoint-20/model.safetensors",
    "join": "parts/part-0-of-2.ckptcheck-part",
    "report": "stored.json",
    "scan of deltas": DELTA,
    "diff of deltas": DELTA,
}
"""Verb → the file that is replaced; a shard for the others."""
SHARD = "sound/model-00002-of-00003.safetensors"


@dataclass(frozen=True)
class Answer:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str
    left: list[str] = field(default_factory=list)
    """Its processes that are still there."""
    is_hanging: bool = False


def run_with_fault(here: Path, verb: str, fault: Fault, shim: Path | None, takes: float = 1.0) -> Answer:
    """Run a command in the folder of its inputs while the machine fails as told.

    takes: seconds that the command takes without a fault.
    """
    mark = uuid.uuid4().hex
    replaced = INPUTS.get(verb, SHARD).format(metadata=METADATA)
    wanted = {name: value.format(here=here, input=replaced) for name, value in fault.environment.items()}
    environment = {**os.environ, "COLUMNS": "100", MARK: mark, **wanted}
    if fault.is_shim:
        environment |= {"LD_PRELOAD": str(shim)}
        if not wanted.keys() & {"FAULT_READONLY", "FAULT_MISSING"}:
            environment |= {"FAULT_FOLDER": str(here)}

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
        if fault.signal:
            try:
                process.wait(fault.at * takes)
            except subprocess.TimeoutExpired:
                process.send_signal(fault.signal)
        try:
            stdout, stderr = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return Answer(process.returncode, "", "", is_hanging=True)
    finally:
        if not isinstance(out, int):
            out.close()
    return Answer(process.returncode, (stdout or b"").decode(), stderr.decode(), find_left(mark))


def find_left(mark: str) -> list[str]:
    """Return the processes of a command that are still there; they have some seconds to see that it has ended."""
    end = time.monotonic() + TO_LEAVE
    while True:
        left = []
        for process in Path("/proc").iterdir():
            try:
                if process.name.isdigit() and f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                    left.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.1)


def writes_file(verb: str) -> bool:
    """Whether a verb writes its answer to a file and not to stdout."""
    return bool({"-o", "--signature"} & {*VERBS[verb]})


def is_whole(written: bytes) -> bool:
    """Whether a file has its end: a page of HTML, lines of JSON, or one JSON value."""
    import json

    if written.startswith(b"<!doctype html"):
        return written.rstrip().endswith(b"</html>")
    try:
        json.loads(written)
    except ValueError:
        try:
            return all(isinstance(json.loads(line), dict) for line in written.splitlines()) and written.endswith(b"\n")
        except ValueError:
            return False
    return True


def find_wrong(here: Path, verb: str, fault: Fault, answer: Answer) -> str:
    """Return what is wrong with an answer; "" where nothing is."""
    import json

    sent = fault.signal
    if answer.is_hanging:
        return "it hangs"
    if answer.left:
        return f"it leaves processes: {answer.left}"
    if fault.secret and fault.secret in answer.stdout + answer.stderr:
        return "it shows a file beside its inputs"
    if "Traceback" in answer.stderr or "Traceback" in answer.stdout:
        return f"a traceback: {answer.stderr[-600:]}"
    if answer.code not in (0, 1, 2) and not (sent and answer.code in (-sent, 128 + sent)):
        return f"exit code {answer.code}: {answer.stderr[-300:]}"
    if answer.code == 0 and fault.must_not_pass and not (fault.output and writes_file(verb)):
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
    written = (here / "report.jsonl").read_bytes()
    if written != OLD and not is_whole(written):
        return f"half a file: {written[:80]!r}, exit code {answer.code}"
    for name in ("kept.json", "sound/ckptcheck.manifest.json"):
        if (here / name).exists() and not is_whole((here / name).read_bytes()):
            return f"half of {name}"
    if written == OLD and answer.code == 0 and writes_file(verb):
        return "it ends with 0 and wrote nothing"
    beside = [path.name for name in (".report*", ".kept*", "sound/.ckptcheck*") for path in here.glob(name)]
    if beside and sent != signal.SIGKILL:
        return f"it leaves {beside}"
    return ""
