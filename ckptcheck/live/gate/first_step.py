"""Runs a job's own command for its first step with a watch on its engine, and judges what the step left."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
from msgspec import structs

from ckptcheck.errors import CkptcheckError
from ckptcheck.framework_folders import load_framework_file
from ckptcheck.jobs.first_step import FirstStep, Row, StepLog
from ckptcheck.jobs.printed_log import RULES, add_logged_numbers, build_printed_log
from ckptcheck.linter.report import Report, Section
from ckptcheck.linter.rule_loader import builtin_rule_folder, load_rules
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.gate.launch_words import write_shell_file
from ckptcheck.live.runtime.process.errors import most_telling_line
from ckptcheck.runs.history.history import open_history
from ckptcheck.runs.history.logged_gap import find_gap
from ckptcheck.text.file_io import open_regular_stream, replace_file
from ckptcheck.text.observer import SILENT, Observer

POLL_SECONDS = 2.0
"""Between two looks at the log of the job."""
TAIL_LINES, TAIL_WIDTH = 200, 300
"""Lines at the end of the log in which the reason of a failure is looked for, and characters of each."""
LAUNCHERS = re.compile(r"\b(CalledProcessError|ChildFailedError)\b")
"""What accelerate and torchrun say after the error of the program that they started."""
PIECE = 1 << 20
"""Bytes of the log that are read at a time."""
LINE_END = re.compile(rb"[\r\n]")
"""A progress bar ends its line by a carriage return alone."""
WATCH = "record={record},share=1000,budget=60"
"""What CKPTCHECK_WATCH says: in so few syncs every tensor is looked at."""
PACKAGE = Path(__file__).parents[2]
METADATA = "Metadata-Version: 2.1\nName: ckptcheck-first-step\nVersion: 0\n"
PLUGINS = """\
[vllm.general_plugins]
ckptcheck = ckptcheck.watch.engine_plugin:watch_vllm
[sglang.srt.plugins]
ckptcheck = ckptcheck.watch.engine_plugin:watch_sglang
"""
"""The entry points of pyproject.toml, for a Python of the job in which ckptcheck is not installed."""


class FirstStepCall(msgspec.Struct):
    """What a gate asks for: the arguments of `run_first_step` as JSON has them."""

    target: str
    framework: str
    """Its name for display."""
    reader: str
    """Its folder in ckptcheck/frameworks."""
    command: list[str]
    """What runs the job, as the user would: ``bash run.sh``."""
    words: list[str]
    """What makes it end after its first step."""
    folder: str
    """For the log, the records, and what the job writes."""
    launch: list[str] = []
    """The words of the command of a script that starts the job, which gets `words`; []: `command` itself gets them."""
    before: list[str] = []
    """Words before the Python file that runs."""
    variables: dict[str, str] = {}
    """Further variables that the job takes from its environment."""
    python_path: str | None = None
    """PYTHONPATH as the user has it."""
    dtypes: tuple[str | None, str | None] = (None, None)
    """In which trainer and engine compute, as far as that is known."""


class _Ended(Exception):
    """The command did not run to its end, or not for one step; the text says why."""


class JobLog:
    """Reads what a job prints while it prints it."""

    def __init__(self, file: Path, first_step: FirstStep) -> None:
        self._file, self._place, self._rest = file, 0, b""
        self.steps = StepLog(first_step)
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)

    def read_on(self) -> None:
        """Read what was printed since the last time."""
        with open_regular_stream(self._file) as file:
            file.seek(self._place)
            while piece := file.read(PIECE):
                self._place += len(piece)
                *lines, self._rest = LINE_END.split(self._rest + piece)
                self._rest = self._rest[-PIECE:]
                for line in lines:
                    text = line.decode(errors="replace").rstrip()
                    self.steps.read(text)
                    if text:
                        self.tail.append(text[:TAIL_WIDTH])


def run_first_step(call: FirstStepCall, observer: Observer = SILENT) -> list[Report]:
    """Run the command and wait for its end; return the report on what it logged, and one on each record of its syncs.

    It is ended where it goes on after its steps, and by a signal, which a gate's deadline sends: every process that it started
    ends with it. Raises CkptcheckError where it cannot be started.
    """
    first_step: FirstStep = load_framework_file(call.reader.replace("-", "_"), "first_step").FIRST_STEP
    folder = Path(call.folder).absolute()
    _make_empty(folder)
    log = JobLog(folder / "log.txt", first_step)
    reason = ""
    try:
        _run_command(call, folder, log, observer)
    except _Ended as error:
        reason = str(error)
    finally:
        # a model that the job saved at its end may have many gigabytes
        shutil.rmtree(folder / "output", ignore_errors=True)
    records = sorted(folder.glob("syncs*.jsonl"))
    rows = log.steps.rows
    if not reason and not rows:
        reason = f"{call.framework} logged no step: {folder / 'log.txt'} has what it printed"
    if not reason and not records:
        reason = (
            "no sync was seen: the engine does not run below this command, or its Python cannot import ckptcheck"
            f" ({folder / 'log.txt'} may say why)"
        )
    histories = [add_logged_numbers(open_history(path), first_step, rows, call.dtypes) for path in records]
    # what the job logged is said once, not for each replica of the engine
    histories[1:] = [replace(history, known_gaps=(), logged=()) for history in histories[1:]]
    if not histories and rows:
        # the log is judged all the same
        histories = [build_printed_log(str(folder / "log.txt"), call.framework, first_step, rows, call.dtypes)]
    if not histories:
        raise CkptcheckError(reason)
    rules = load_rules()
    reports = [
        run_rules(history, rules if records else [rule for rule in rules if rule.name in RULES])
        for history in histories
    ]
    shown = _describe(call, first_step, rows, folder / "log.txt")
    return [
        structs.replace(
            report,
            error=None if place else reason or None,
            # the others list each tensor of so few syncs
            sections=((shown,) if place == 0 else ()) + (report.sections[:1] if records else ()),
            rules=tuple(rules),
        )
        for place, report in enumerate(reports)
    ]


def _describe(call: FirstStepCall, first_step: FirstStep, rows: Sequence[Row], log: Path) -> Section:
    """Return the table of what the job logged of its loss and of the gap, and where the rest is."""
    gaps = [gap.name for row in rows if (gap := find_gap(row, None)) is not None]
    names = dict.fromkeys([first_step.loss, first_step.gradient, *gaps])
    table = tuple((name, *(row.get(name) for row in rows)) for name in names if any(name in row for row in rows))
    columns = ("the job's own number", *(f"step {number}" for number in range(1, len(rows) + 1)))
    lines = [f"command  {shlex.join(call.command)}", f"log      {log}"]
    if rows and not gaps:
        lines.append("not seen: how far engine and trainer are apart, which the job does not log")
    if any(row.get(first_step.gradient) == 0.0 for row in rows):
        lines.append(
            f"not seen: whether a sync brings new weights, since a step has none ({first_step.gradient} is 0: every group has equal"
            " rewards?)"
        )
    return Section("The job's own first step", columns if table else (), table, tuple(lines))


def _make_empty(folder: Path) -> None:
    """Make the folder, without what an earlier run left in it."""
    if folder.is_symlink():
        raise CkptcheckError(f"{folder} is a link", hint="remove it, or give the gate another --folder")
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "output").mkdir(parents=True)
    (folder / "log.txt").touch()


def _run_command(call: FirstStepCall, folder: Path, log: JobLog, observer: Observer) -> None:
    """Run the command to its end. Raises _Ended where it fails, does not end by itself, or is interrupted."""
    from ckptcheck.live.runtime.process.client import WorkerClient
    from ckptcheck.live.runtime.process.signal_guard import SignalGuard

    mark = folder / "launched"
    variables = _list_variables(call, folder)
    command = list(call.command)
    if call.launch:
        content = write_shell_file(call.launch, call.words, str(mark), call.before)
        replace_file(folder / "bash_env", content.encode())
        variables |= {"BASH_ENV": str(folder / "bash_env"), "CKPTCHECK_BASH_ENV": os.environ.get("BASH_ENV", "")}
    else:
        program = next((place for place, word in enumerate(command) if word.endswith(".py")), len(command))
        command[program:program] = call.before
        command += call.words
    if shutil.which(command[0]) is None:
        raise CkptcheckError(f"{command[0]} is not on the PATH", hint="run the gate in the environment of the job")
    observer.log(f"gate: {shlex.join(call.command)}, for its first step; its output goes to {folder / 'log.txt'}")
    with SignalGuard(), WorkerClient(Path(sys.executable), "ckptcheck_worker.command", name="first-step") as worker:
        code = None
        try:
            worker.call(
                "start", arguments=command, folder=str(Path.cwd()), variables=variables, log=str(folder / "log.txt")
            )
            while code is None:
                code = worker.call("wait", seconds=POLL_SECONDS)
                log.read_on()
                if code is None:
                    _end_longer_job(call, log, mark)
        except KeyboardInterrupt as error:
            log.read_on()
            raise _Ended(str(error) or "interrupted") from error
        finally:
            worker.close(0)
    if code:
        lines = tuple(line for line in log.tail if not LAUNCHERS.search(line))
        last = f": {most_telling_line(lines)}" if lines else ""
        raise _Ended(f"its command ended with exit code {code}{last}")


def _end_longer_job(call: FirstStepCall, log: JobLog, mark: Path) -> None:
    """Raise _Ended where the job runs longer than for the steps that it was given."""
    done = len(log.steps.rows)
    if done and call.launch and not mark.exists():
        raise _Ended(
            "the options for one step did not reach its command, which was ended after the first step that it logged"
        )
    if done > load_framework_file(call.reader.replace("-", "_"), "first_step").FIRST_STEP.steps:
        raise _Ended(f"it did not end after its first step, and was ended after {done}")


def _list_variables(call: FirstStepCall, folder: Path) -> dict[str, str]:
    """Return the environment of the command: the user's own, and what puts the watch into its engine."""
    site = folder / "site"
    info = site / "ckptcheck_first_step-0.dist-info"
    info.mkdir(parents=True)
    replace_file(info / "METADATA", METADATA.encode())
    replace_file(info / "entry_points.txt", PLUGINS.encode())
    for place in (PACKAGE, builtin_rule_folder()):
        if not place.is_relative_to(PACKAGE) or place == PACKAGE:
            (site / place.name).symlink_to(place)
    path = [str(site), *([call.python_path] if call.python_path else [])]
    return {
        **os.environ,
        **call.variables,
        "PYTHONPATH": os.pathsep.join(path),
        "CKPTCHECK_WATCH": WATCH.format(record=folder / "syncs.jsonl"),
    }
