"""Job files that ask for more work than they have bytes: an answer or one sentence, within 5 s of CPU and 500 MB."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.budget import CALLS, MANY, WorkBudget
from ckptcheck.jobs.open_job import open_job
from ckptcheck.linter import rule_loader
from ckptcheck.linter.baseline import read_baseline
from ckptcheck.linter.runner import run_rules
from ckptcheck.linter.settings import load_settings
from ckptcheck.live.gate.gate_file import read_gate_request
from ckptcheck.reporters import text
from tests.jobs.job_fuzz import check_one
from tests.jobs.job_traps import LAUNCH, PRIME, TRL, VERL, Files, list_traps, python_classes
from tests.limited_child import Outcome, run_limited

TRAPS = dict(list_traps())
RULES = [rule for rule in rule_loader.load_rules() if rule.on == "job"]


def preflight(folder: Path, files: Files) -> Outcome:
    """Write a job's files and read them in a child: what `open_job` and the rules say."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")

    def read() -> str:
        try:
            report = run_rules(open_job([str(folder / next(iter(files)))]), RULES)
        except CkptcheckError as trouble:
            return trouble.message[:1500]
        crashes = [why for _, why in report.crashed if not why.startswith("could not read ")]
        assert not crashes, crashes
        text.write([report], RULES, stream := io.StringIO(), verbose=True)
        return stream.getvalue()

    return run_limited(read)


# what was seen to crash, to hang or to fill the memory, each at the size at which it did
@pytest.mark.parametrize(
    "files",
    [
        {"job.yaml": "actor_rollout_ref: {rollout: {name: '" + "${oc.env:A," * 30 + "x" + "}" * 30 + "'}}\n"},
        {"job.yaml": f"defaults: ['']\n{VERL}"},
        {"job.toml": PRIME + "a" + ".a" * 40_000 + " = 1\n"},
        {"run.sh": "A=(" * 1000 + LAUNCH},
        {"run.sh": "! " * 1500 + "true\n" + LAUNCH},
        {"run.sh": "A=$A$A " * 430 + LAUNCH},
        {"run.sh": "A+=$A " * 500 + LAUNCH},
        {"run.sh": "X=$(-m -m)" + LAUNCH},
        {"run.sh": "source run.sh\n" * 200 + LAUNCH},
        {"run.sh": f"bash -c 'x {'verl/' * 18_000}'\n" * 4 + LAUNCH},
        {"run.sh": "( " * 30_000 + LAUNCH},
        {"run.sh": 'X="' + "$[" * 400_000 + '"' + LAUNCH},
        {"run.sh": 'X="' + "`" * 900_000 + '"' + LAUNCH},
        {"run.sh": "set -- $@ a\n" * 8000 + LAUNCH},
        {"train.py": "import re\nre.match('(a*)*b', 'a' * 199)\n" + TRL},
        {"train.py": "import re\na = re.search('(a|a|aa)+b', 'a' * 199)\n" + TRL},
        python_classes(2000),
        {"train.py": "import os\na = 'x'\n" + "a = os.path.join(a, a)\n" * 60 + TRL},
        {"train.py": "from pathlib import Path\na = Path('x')\n" + "a = a / a\n" * 60 + TRL},
        {"train.py": "import shlex\na = \"'\"\n" + "a = shlex.quote(a)\n" * 60 + TRL},
        {"train.py": "a = 'x' * 90000\nb = a.replace('x', a)\n" + TRL},
        {"run.sh": f"A=({'a ' * 9000})\n" + "X=${#A[@]}\n" * 60_000 + LAUNCH},
        {"train.py": "a = list(range(1900))\n" + "b = -1 in a\n" * 9000 + TRL},
        {"train.py": "a = f'''" + "{b}" * 90_000 + "'''\n" + TRL},
        {"train.py": "def f(a):\n return f(a) + f(a)\n" + "f(2)\n" * 180_000 + TRL},
    ],
    ids=lambda files: f"{next(iter(files))} {next(iter(files.values()))[-90:-60]!r}",
)  # fmt: skip
def test_what_was_seen_to_fail_has_an_answer(tmp_path: Path, files: Files) -> None:
    outcome = preflight(tmp_path / "job", files)
    assert not outcome.fault, (outcome.fault, outcome.answer)


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in TRAPS.items()][::17])
def test_a_trap_has_an_answer(tmp_path: Path, make: Callable[[int], Files]) -> None:
    outcome = preflight(tmp_path / "job", make(20_000))
    assert not outcome.fault, (outcome.fault, outcome.answer)


@pytest.mark.usefixtures("without_clock")
def test_the_budget_is_one_for_all_parsers_of_a_job(tmp_path: Path) -> None:
    script = "echo a b c d e f g h\n" * 4000
    files = {"run.sh": "source a.sh\n" * 20 + LAUNCH, "a.sh": script}
    outcome = preflight(tmp_path / "job", files)
    assert "a.sh comes to more than 300,000 steps of work" in outcome.answer


def test_a_budget_that_a_reader_passed_over_is_still_used_up() -> None:
    budget = WorkBudget(10)
    with pytest.raises(CkptcheckError, match=r"run\.sh comes to more than 10 steps of work"):
        budget.spend(11, "run.sh")
    with pytest.raises(CkptcheckError):
        budget.require_left("run.sh")


def test_the_clock_ends_what_the_steps_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs within ``with`` alone: what a scan of the job's checkpoints takes beside is not its own."""
    now = 0.0
    monkeypatch.setattr(time, "thread_time", lambda: now)
    with WorkBudget() as budget:
        now = 2.9
        budget.spend(MANY, "run.sh")
        now = 3.1
        budget.spend(0, "run.sh")
        with pytest.raises(CkptcheckError, match=r"run\.sh comes to more than 3 seconds of processor time"):
            budget.spend(MANY, "run.sh")
        with pytest.raises(CkptcheckError):
            budget.require_left("run.sh")
    with WorkBudget() as budget:
        for _ in range(CALLS - 1):
            budget.spend(0, "run.sh")
        now = 7.0
        with pytest.raises(CkptcheckError):
            budget.spend(0, "run.sh")
    with WorkBudget() as budget:
        pass
    now = 99.0
    budget.spend(MANY, "run.sh")


@pytest.mark.parametrize(
    "content", ["a" + ".a" * 60_000 + " = 1\n", "a = " + "[" * 100_000, "a = " + "9" * 5000, "a = {" * 3000]
)
@pytest.mark.parametrize("read", [load_settings, lambda path: read_gate_request([str(path)]), read_baseline])
def test_settings_gates_and_baselines_answer_too(tmp_path: Path, content: str, read: Callable[[Path], object]) -> None:
    (path := tmp_path / "ckptcheck.toml").write_text(content, encoding="utf-8")

    def say() -> str:
        with pytest.raises(CkptcheckError) as trouble:
            read(path)
        return trouble.value.message

    assert not (outcome := run_limited(say)).fault, outcome


@pytest.mark.parametrize(
    "read",
    [load_settings, lambda path: read_gate_request([str(path)]), read_baseline, lambda path: open_job([str(path)])],
)
def test_a_pipe_in_place_of_a_file_does_not_hang(tmp_path: Path, read: Callable[[Path], object]) -> None:
    os.mkfifo(path := tmp_path / "x.toml")
    with pytest.raises(CkptcheckError):
        read(path)


@pytest.mark.parametrize("name", ["a.b=" + "x" * 5000, "a.b=" + "x/" * 3000])
def test_a_long_override_is_no_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "job.yaml").write_text(VERL, encoding="utf-8")
    assert open_job([str(tmp_path / "job.yaml"), name]).framework == "verl"


@pytest.mark.parametrize("line", ["source {}", "[ -f {} ] && source {}", "python3 {}.py", "python3 x.py --config {}"])
def test_a_long_name_in_a_script_is_no_file(tmp_path: Path, line: str) -> None:
    outcome = preflight(tmp_path / "job", {"run.sh": line.replace("{}", "x" * 5000) + LAUNCH})
    assert not outcome.fault, outcome


@pytest.mark.parametrize("seed", range(40))
def test_made_up_jobs_have_an_answer(tmp_path: Path, seed: int) -> None:
    check_one(seed, tmp_path / "job")
