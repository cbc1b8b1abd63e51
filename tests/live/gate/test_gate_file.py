"""A gate file says the job, the deadline and what differs from the job; whatever else it says is refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

import ckptcheck
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.gate.gate_file import parse_duration, read_gate_request


def write(folder: Path, text: str) -> str:
    path = folder / "train.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_everything_that_a_gate_file_can_say(tmp_path: Path) -> None:
    (tmp_path / "run.sh").touch()
    text = """
job = ["run.sh", "a.b=c"]
model = "tiny"
deadline = "10 min"
stages = ["parity", "preflight"]
go-on = true
folder = "results"
[parity]
max-kl = 0.02
"""
    request = read_gate_request([write(tmp_path, text), "d=e"])
    assert request.job == (str(tmp_path / "run.sh"), "a.b=c", "d=e")
    assert (request.deadline, request.stages, request.goes_on) == (600.0, ("preflight", "parity"), True)
    assert (request.folder, request.model) == (tmp_path / "results", str(tmp_path / "tiny"))
    assert request.options == {"parity": {"max_kl": 0.02}}


def test_a_jobs_own_file_is_no_gate_file(tmp_path: Path) -> None:
    own = write(tmp_path, '[job]\nname = "a"\n[trainer]\n')
    assert read_gate_request([own, "a=b"]).job == (own, "a=b")
    assert read_gate_request(["run.sh"]).results_folder == Path("run.gate")
    assert read_gate_request([write(tmp_path, 'job = "run.sh"')]).results_folder == Path("train.gate")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('job = "a"\ndealine = "1 min"', "a gate has no setting dealine; did you mean deadline?"),
        ('job = "a"\ndeadline = "soon"', "deadline: soon is no time"),
        ('job = "a"\ndeadline = true', "deadline: True is no time"),
        ('job = "a"\ndeadline = 0', "deadline: 0 is no time"),
        ('job = "a"\nstages = ["scn"]', "stages is not a list of some of preflight, scan, refit, parity"),
        ('job = "a"\nstages = []', "stages is not a list"),
        ('job = "a"\nrefit = 1', "refit is not a table"),
        ('job = "a"\ngo-on = "yes"', "go-on is not true or false"),
        ("job = []", "job is not a file, or a list of files"),
        ("job = [1]", "job is not a file, or a list of files"),
        ('job = "a"\nstages = ["scan"]\n[refit]\nsteps = 1', "[refit] has no effect, since stages leaves it out"),
        ("job = ", "is not TOML"),
    ],
)
def test_a_malformed_gate_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CkptcheckError) as caught:
        read_gate_request([write(tmp_path, text)])
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[refit]\nenginetp = 2", "[refit] takes no enginetp; did you mean engine-tp?"),
        ("[scan]\nbaseline = 'x'", "[scan] takes no baseline"),
        ("[parity]\npictures = true", "[parity] takes no pictures"),
    ],
)
def test_an_unknown_argument_is_refused_before_anything_runs(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CkptcheckError) as caught:
        ckptcheck.gate(write(tmp_path, f'job = "nowhere.yaml"\n{text}'))
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(("text", "seconds"), [("90 s", 90), ("1.5 hours", 5400), ("2m", 120), (30, 30), ("7", 7)])
def test_durations(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("[refit]\nsteps = 'two'\n", r"\[refit\] takes a whole number as steps, not 'two'"),
        ("[refit]\nsteps = -1\n", "--steps takes whole numbers from 0 on, not -1"),
        ("[scan]\nselect = 3\n", r"\[scan\] takes a text or several of these as select, not 3"),
        ("[parity]\ndtype = 'float16'\n", "--dtype is one of float32, bfloat16, not float16"),
    ],
)
def test_a_value_that_a_verb_does_not_take_is_a_sentence(tmp_path: Path, table: str, sentence: str) -> None:
    (tmp_path / "gate.toml").write_text(f'job = "job.yaml"\n{table}', encoding="utf-8")
    (tmp_path / "job.yaml").write_text("actor_rollout_ref: {rollout: {name: vllm}}\n", encoding="utf-8")
    with pytest.raises(CkptcheckError, match=sentence):
        ckptcheck.gate(tmp_path / "gate.toml", folder=tmp_path / "results")
    assert not (tmp_path / "results").exists()
