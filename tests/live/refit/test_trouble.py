"""Whatever happens to an engine, a trainer or the command itself: a verdict, exit code 2, and nothing left behind.

The far processes are stand-ins behind the real hosts, guardians and wires (tests/doubles/faults.py); the command is the real one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.live.refit import trial_state
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.paths import DOUBLES

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")]

PYTHON = """#!{python}
import os, sys
arguments = sys.argv[1:]
if arguments[1] == "-c":  # which packages are there?
    print('{{"python": "3.11.0", "site": "", "versions": {{"vllm": "0"}}}}')
    sys.exit()
module = {module!r}
arguments[5:7] = [os.path.basename(module)[:-3], module]  # in place of ckptcheck's own, and the file it is from
os.execv({python!r}, [{python!r}, *arguments])
"""


@dataclass(frozen=True)
class Outcome:
    """What a command left: its exit code, its report, what it said, the processes and files that are still there."""

    code: int
    out: str
    err: str
    notes: list[str]
    processes: list[str]
    files: list[str]
    mark: str

    @property
    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def cost_sections(self) -> list[list[Any]]:
        """The rows of the table of costs."""
        tables = self.report["sections"]
        return [row for table in tables if table["title"].startswith("cost of the syncs") for row in table["rows"]]

    @property
    def why(self) -> str:
        """Why the verdict is incomplete: each rule that could not pass says the same."""
        assert self.report["verdict"] == "incomplete"
        reasons = {entry["error"] for entry in self.report["crashed"]} | {self.report.get("error")} - {None}
        assert len(reasons) == 1, reasons
        return str(reasons.pop())


@pytest.fixture
def place() -> Iterator[Path]:
    """A temporary folder with a short name: sockets are made in it."""
    folder = Path(tempfile.mkdtemp(prefix="t-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def write_stand_ins(place: Path, fault: str) -> dict[str, str]:
    """Write Pythons that stand in for an engine's and a trainer's; return the environment that they and the command need."""
    for side in ("engine", "trainer"):
        script = place / side
        module = str(DOUBLES / f"stand_in_{side}.py")
        script.write_text(PYTHON.format(python=sys.executable, module=module))
        script.chmod(0o755)
    temporary, notes = place / "tmp", place / "notes"
    temporary.mkdir()
    notes.write_text("")
    return {"TMPDIR": str(temporary), "CKPTCHECK_FAULT": fault, "CKPTCHECK_NOTES": str(notes), "CELL": uuid.uuid4().hex}


def refit(
    place: Path,
    fault: str,
    *arguments: str,
    redirect: str = "",
    steps: str = "1",
    source: Path = CHECKPOINTS / "tiny-llama",
) -> Outcome:
    """Run the command with a fault, and look for what it left."""
    environment = {**os.environ, **write_stand_ins(place, fault)}
    temporary, notes, mark = place / "tmp", place / "notes", environment["CELL"]
    command = [
        *(sys.executable, "-m", "ckptcheck", "refit", str(source), "--trainer", "transformers"),
        *(
            "--set",
            f"engine-python={place / 'engine'}",
            "--set",
            f"trainer-python={place / 'trainer'}",
            "--steps",
            steps,
        ),
        *("--set", "bucket-mb=0.002", "--format", "json", *arguments),
    ]
    if redirect:
        command = ["bash", "-c", f'"$@" {redirect}', "bash", *command]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    said = notes.read_text().splitlines()
    folders = {line.partition(":")[2] for line in said if line.startswith("folder:")}
    files = [str(path) for path in temporary.iterdir()] + [folder for folder in folders if Path(folder).exists()]
    calls = [line for line in said if not line.startswith("folder:")]
    return Outcome(done.returncode, done.stdout, done.stderr, calls, marked(mark), files, mark)


def marked(mark: str) -> list[str]:
    """Return the processes that were started with this mark in their environment, and still run."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def test_without_a_fault_the_report_is_whole_and_says_what_it_cost(place: Path) -> None:
    outcome = refit(place, "")
    assert (outcome.code, outcome.processes, outcome.files) == (0, [], []), outcome.err + outcome.out
    assert outcome.report["verdict"] == "clean"
    assert [row[:2] for row in outcome.cost_sections] == [[1, 0], [2, 1], [3, 1]]
    assert all(row[4] > 0 and row[7] == row[6] / row[4] for row in outcome.cost_sections)
    assert outcome.notes[0] == "trainer:load"
    assert {line.split(":")[1] for line in outcome.notes} >= set(VERBS["engine"]) | set(VERBS["trainer"])


VERBS = {
    "engine": (
        "start",
        "ranks-digest_tensors",
        "ranks-memory_bytes",
        "score",
        "ranks-scramble_weights",
        "update_weights",
        "ranks-find_unwritten",
    ),
    "trainer": ("load", "export", "score", "decode_greedy", "digests", "step"),
}
MOMENTS = [
    *(("trainer:import:1", "start of the trainer"), ("engine:import:1", "cold load")),
    *((f"engine:{verb}:1", None) for verb in VERBS["engine"] if verb != "ranks-memory_bytes"),
    *((f"trainer:{verb}:1", None) for verb in VERBS["trainer"]),
    *(("engine:start:2", "reference for step 1"), ("engine:update_weights:2", "sync after step 1")),
    *(("engine:update_weights:3", "the same sync with other buckets"), ("engine:reset_prefix_cache:2", None)),
    ("trainer:export:3", "reference for step 1"),
]


@pytest.mark.parametrize(("moment", "phase"), MOMENTS, ids=[moment for moment, _ in MOMENTS])
def test_a_process_that_is_killed(place: Path, moment: str, phase: str | None) -> None:
    outcome = refit(place, f"{moment}:killed")
    assert (outcome.code, outcome.processes, outcome.files) == (2, [], []), outcome.err
    assert "died (SIGKILL: out of memory, or killed by somebody) when asked to" in outcome.why
    assert "; its last output: here comes killed" in outcome.why
    assert "  | here comes killed\n" in outcome.err
    assert outcome.why.startswith(f"could not finish {phase or ''}")
    assert outcome.report["passed"] == []


@pytest.mark.parametrize("moment", ["trainer:step:1", "engine:start:1", "engine:score:2", "engine:update_weights:2"])
def test_a_process_that_hangs_is_ended_when_its_phase_has_had_its_time(place: Path, moment: str) -> None:
    kind = {"trainer:step:1": "step", "engine:start:1": "start", "engine:score:2": "score"}.get(moment, "sync")
    outcome = refit(place, f"{moment}:hangs", "--set", "timeout=200", "--set", f"timeout={kind}=10")
    assert (outcome.code, outcome.processes, outcome.files) == (2, [], []), outcome.err
    assert "did not answer in time when asked to" in outcome.why
    assert f"the phase had 10 s (--set timeout={kind}=SECONDS)" in outcome.why
    assert "; it was in happen (stand_in_faults.py, line " in outcome.why


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            "engine:update_weights:2:leaves",
            "died (exit code 9) when asked to update weights; its last output: torch.OutOfMemoryError: tried",
        ),
        ("engine:start:1:memory", "vllm could not start: MemoryError"),
        ("trainer:step:1:memory", "could not step: MemoryError"),
        ("trainer:export:2:disk", "could not export: OSError: [Errno 28] No space left on device: '/dev/shm/full'"),
    ],
)
def test_out_of_memory_and_of_room(place: Path, fault: str, words: str) -> None:
    outcome = refit(place, fault)
    assert (outcome.code, outcome.processes, outcome.files) == (2, [], []), outcome.err
    assert words in outcome.why


def test_errors_of_the_source_end_the_trial_unless_it_is_told_to_go_on(place: Path) -> None:
    source = shutil.copytree(CHECKPOINTS / "tiny-llama", place / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "vocab_size": config["vocab_size"] + 1}))
    outcome = refit(place, "", source=source, steps="0")
    assert outcome.code == 2
    assert ", the first: " in outcome.report["error"]
    assert ", the first: " in outcome.err
    assert "--set despite-errors=on continues despite them" in outcome.err
    shutil.rmtree(place / "tmp")
    outcome = refit(place, "", "--set", "despite-errors=on", source=source, steps="0")
    assert (outcome.code, outcome.report["verdict"]) == (0, "clean"), outcome.err
    first = outcome.report["sections"][0]
    assert first["title"].startswith("errors of the source itself, which this trial ignored")
    assert first["lines"]
    assert all("vocab_size" in line for line in first["lines"]), first["lines"]


def test_an_answer_that_nobody_expects_is_a_report_too(place: Path) -> None:
    outcome = refit(place, "engine:update_weights:1:nonsense")
    assert (outcome.code, outcome.processes, outcome.files) == (2, [], []), outcome.err
    assert outcome.why.startswith("could not finish first sync: ValidationError: ")
    assert "Traceback" in outcome.err


def test_what_was_found_before_the_end_is_in_the_report(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTCHECK_ROTARY", "1")
    outcome = refit(place, "trainer:step:2:killed", steps="2")
    assert outcome.code == 2
    assert [finding["code"] for finding in outcome.report["findings"]] == ["REF005", "REF008"]
    assert outcome.report["counts"]["tensors"] > 0
    assert len(outcome.cost_sections) == 3
    assert outcome.why.startswith("could not finish step 2")


@pytest.mark.parametrize(
    ("flag", "name"),
    [("-o", "nowhere/file"), ("-o", "tmp"), *(("--record", name) for name in ("nowhere/file", "tmp", "readme"))],
)
def test_what_could_not_be_written_at_the_end_is_refused_at_the_beginning(place: Path, flag: str, name: str) -> None:
    (place / "readme").write_text("it is no record\n")
    outcome = refit(place, "", flag, str(place / name))
    assert (outcome.code, outcome.out, outcome.notes) == (2, "", []), outcome.err
    assert str(place / name) in outcome.err
    assert (place / "readme").read_text() == "it is no record\n"


def test_a_report_is_not_written_over_what_is_read(place: Path) -> None:
    source = shutil.copytree(CHECKPOINTS / "tiny-llama", place / "source")
    outcome = refit(place, "", "-o", str(source / "config.json"), source=source)
    assert (outcome.code, outcome.notes) == (2, [])
    assert "source/config.json is a file of a model, and would be overwritten" in outcome.err


@pytest.mark.parametrize("flag", ["-o", "--record"])
def test_a_trial_is_told_also_where_its_file_cannot_be_written_any_more(place: Path, flag: str) -> None:
    """The folder is gone when the trial ends: the stand-in for the trainer takes it away."""
    (place / "reports").mkdir()
    outcome = refit(place, f"trainer:step:1:away={place / 'reports'}", flag, str(place / "reports" / "file"))
    assert (outcome.code, outcome.processes, outcome.files) == (2, [], []), outcome.err
    assert outcome.report["verdict"] == "clean"
    assert (
        f"ckptcheck: cannot write {'the record ' if flag == '--record' else ''}{place / 'reports' / 'file'}: No such"
        in outcome.err
    )


@pytest.mark.parametrize(
    ("moment", "signals", "said"),
    [
        ("trainer:load:1", "SIGINT", "interrupted"),
        ("engine:start:1", "SIGINT", "interrupted"),
        ("engine:update_weights:2", "SIGINT", "interrupted"),
        ("engine:score:2", "SIGINT+SIGINT+SIGINT", "interrupted"),
        ("trainer:export:2", "SIGTERM", "interrupted by SIGTERM"),
        ("engine:ranks-digest_tensors:2", "SIGHUP", "interrupted by SIGHUP"),
        ("trainer:score:3", "SIGINT+SIGTERM", "interrupted"),
    ],
)
def test_signals_end_the_command_in_order(place: Path, moment: str, signals: str, said: str) -> None:
    outcome = refit(place, f"{moment}:{signals}")
    code = 130 if signals.startswith("SIGINT") else 2
    assert (outcome.code, outcome.processes, outcome.files) == (code, [], []), outcome.err
    assert outcome.why.endswith(f": {said}")
    assert "Traceback" not in outcome.err


def test_a_command_that_is_killed_leaves_nothing_either(place: Path) -> None:
    outcome = refit(place, "engine:update_weights:2:SIGKILL")
    assert outcome.code == -9
    wait_until(lambda: not marked(outcome.mark) and not list((place / "tmp").iterdir()))


def wait_until(done: Any) -> None:
    """Poll: guardians give what they end three seconds before they kill."""
    import time

    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


@pytest.mark.parametrize("redirect", [">&-", "2>&-", "<&- >&- 2>&-", "2>&1 >/dev/full"])
def test_streams_that_are_closed_or_full(place: Path, redirect: str) -> None:
    outcome = refit(place, "", redirect=redirect, steps="0")
    assert (outcome.processes, outcome.files) == ([], []), outcome.err
    # only stderr may be missing: nobody gets the report otherwise
    assert outcome.code == (0 if redirect == "2>&-" else 2), outcome.err + outcome.out
    assert "Traceback" not in outcome.err + outcome.out


def test_a_reader_that_has_seen_enough(place: Path) -> None:
    outcome = refit(place, "", "--format", "text", redirect="2>&1 | head -n 1", steps="0")
    assert (outcome.processes, outcome.files) == ([], [])
    assert outcome.out == "start of the trainer\n"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("trainer:send:1:taken", "could not send: OSError: [Errno 98] Address already in use"),
        (
            "trainer:send:2:killed",
            "transformers died (SIGKILL: out of memory, or killed by somebody) when asked to send",
        ),
        (
            "engine:update_weights:1:killed",
            "vllm died (SIGKILL: out of memory, or killed by somebody) when asked to update weights",
        ),
        ("engine:update_weights:2:SIGINT", "interrupted"),
    ],
)
def test_one_side_of_a_process_group_is_lost_and_the_other_does_not_wait(place: Path, fault: str, words: str) -> None:
    outcome = refit(place, fault, "--transport", "gloo")
    code = 130 if words == "interrupted" else 2
    assert (outcome.code, outcome.processes, outcome.files) == (code, [], []), outcome.err
    assert words in outcome.why


def test_a_transport_between_gpus_is_refused_in_a_sentence_and_nothing_is_left(place: Path) -> None:
    outcome = refit(place, "", "--transport", "ipc")
    assert (outcome.code, outcome.processes, outcome.files) == (2, [], []), outcome.err
    assert outcome.report["error"].startswith("ipc carries weights between GPUs only, and vllm computes on a CPU")
    assert "ipc carries weights between GPUs only, and vllm computes on a CPU" in outcome.err
    assert "choose one of reload, gloo, load_weights" in outcome.err
    assert "engine:ranks-scramble_weights" not in outcome.notes


def test_an_engine_that_is_not_there_is_noticed_before_the_trainer_loads(place: Path) -> None:
    outcome = refit(place, "", "--set", f"engine-python={place / 'nowhere'}")
    assert (outcome.code, outcome.files) == (2, []), outcome.err
    assert outcome.report["error"] == f"cannot run {place / 'nowhere'}: No such file or directory"
    assert outcome.err.startswith(f"ckptcheck: {outcome.report['error']}")
    assert outcome.notes == []


def test_a_switch_that_was_not_taken_is_in_the_report(place: Path) -> None:
    outcome = refit(place, "", "--switch", "compilation=graphs", "--set", "device=cpu", "--set", "engine-gpus=0")
    assert outcome.code == 0, outcome.err
    lines = [
        line for table in outcome.report["sections"] if table["title"].startswith("switches") for line in table["lines"]
    ]
    assert lines == ["compilation: vLLM 0 on CPU has no such switch"]


def test_time_outs_are_for_every_phase_or_one() -> None:
    found = trial_state.parse_timeouts(["100", "sync=0.5", "start=7"])
    assert [found.seconds(kind, 10**12) for kind in ("start", "score", "step", "sync")] == [7, 100, 100, 0.5]
    assert trial_state.parse_timeouts([]).seconds("sync", 5 * 10**9) == 300 + 100
    for text in ("0", "fast", "start=", "warp=3", "-1", "inf", "step=nan", "=3"):
        with pytest.raises(CkptcheckError, match="is neither SECONDS nor PHASE=SECONDS"):
            trial_state.parse_timeouts([text])
