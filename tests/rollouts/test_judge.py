"""The command: reports, limits, exit codes; the same files give the same bytes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptcheck
from ckptcheck import convert_rollouts
from ckptcheck.cli.app import build_app
from ckptcheck.errors import CkptcheckError
from ckptcheck.rollouts import write_lines, write_rollouts
from ckptcheck.rollouts.build import Rollout, build_rollouts
from ckptcheck.rollouts.curves import CURVES, compare_curves
from ckptcheck.rollouts.metrics import NoiseFloor, compute_metrics, noise_floor
from ckptcheck.runs.history.record import Record, SyncRecord
from tests.factories.rollout_cases import change_column, draw_rollouts
from tests.paths import DATA


def judge(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, as main() does; the working directory has to be `cwd`."""
    assert Path.cwd() == cwd
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(io.StringIO()) as talk:
        try:
            code = build_app()(["parity", "judge", *map(str, arguments)], standalone_mode=False)
        except CkptcheckError as error:
            code = 2
            talk.write(f"{error.message}\n{error.hint or ''}")
    return subprocess.CompletedProcess([], code, said.getvalue(), talk.getvalue())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for step in range(2):
        about = {"step": step, "model": "org/m"}
        write_rollouts(
            draw_rollouts(sequences=8, seed=step, versions=str(step), metadata=about),
            tmp_path / f"step{step}.safetensors",
        )
    write_lines(
        draw_rollouts(sequences=8, versions="0", metadata={"step": 0, "model": "org/m"}), tmp_path / "step0.jsonl"
    )
    write_rollouts(
        change_column(draw_rollouts(sequences=8), {"column": "trainer_logprobs", "add": -0.2}),
        tmp_path / "off.safetensors",
    )
    (tmp_path / "broken.safetensors").write_bytes((tmp_path / "step0.safetensors").read_bytes()[:-100])
    return tmp_path


def test_exit_codes_and_what_is_said(here: Path) -> None:
    sound = judge("step0.safetensors", cwd=here)
    assert (sound.returncode, sound.stderr) == (0, "")
    assert "✓ clean" in sound.stdout
    off = judge("off.safetensors", "--set", "max-kl=1", cwd=here)
    assert off.returncode == 1
    assert "over 256 tokens: mult_prob_error is 1.2214 (limit 1.05); " in off.stdout
    assert "by k3" not in off.stdout
    broken = judge("broken.safetensors", cwd=here)
    assert broken.returncode == 1
    assert "PAR001" in broken.stdout
    none = judge("none.safetensors", cwd=here)
    assert (none.returncode, none.stderr) == (2, "none.safetensors does not exist\n")


@pytest.mark.parametrize("name", ["verl-0.9.1.pkl", "verl-0.9.1.pt"])
def test_a_frameworks_own_file_is_to_be_converted_first(here: Path, name: str) -> None:
    (here / name).write_bytes((DATA / "rollouts" / name).read_bytes())
    found = judge(name, cwd=here)
    assert found.returncode == 2
    assert f"{name} is a pickle" in found.stderr
    assert f"ckptcheck parity convert {name} -o verl-0.9.1.safetensors" in found.stderr
    (here / "answers.jsonl").write_text('{"choices": []}\n')
    assert "convert the dump of a framework first: ckptcheck parity convert" in judge("answers.jsonl", cwd=here).stdout


def test_limits_are_flags(here: Path) -> None:
    assert judge("off.safetensors", "--no-limits", cwd=here).returncode == 0
    tight = judge("step0.safetensors", "--set", "max-mult-prob-error=1.0001", "--format", "json", cwd=here)
    assert [finding["code"] for finding in json.loads(tight.stdout)["findings"]] == ["PAR020"]
    found = compute_metrics(draw_rollouts(sequences=8))
    assert found is not None
    noise_floor.write_noise_floor(NoiseFloor.of({"engine-repeat": found}), here / "floor.json")
    off = judge("off.safetensors", "--floor", "floor.json", "--no-limits", cwd=here)
    assert off.returncode == 1
    assert " times the floor)" in off.stdout


def test_several_files_are_a_series(here: Path) -> None:
    found = judge("step1.safetensors", "step0.safetensors", "--format", "json", cwd=here)
    reports = json.loads(found.stdout)["reports"]
    assert [report["target"] for report in reports[:2]] == ["step1.safetensors", "step0.safetensors"]
    assert reports[2]["target"] == "step0.safetensors … step1.safetensors"
    assert reports[2]["passed"] == ["PAR041"]


def test_two_clean_files_without_weight_versions_are_clean(here: Path) -> None:
    names = [f"{number}.safetensors" for number in range(2)]
    for number, name in enumerate(names):
        write_rollouts(draw_rollouts(seed=number), here / name)
    found = judge(*names, cwd=here)
    assert found.returncode == 0
    assert "skipped PAR041" in found.stdout


def test_both_forms_give_the_same_numbers(here: Path) -> None:
    reports = [
        json.loads(judge(name, "--format", "json", cwd=here).stdout) for name in ("step0.safetensors", "step0.jsonl")
    ]
    assert reports[0]["sections"] == reports[1]["sections"]


def test_the_same_files_give_the_same_bytes(here: Path) -> None:
    command = [sys.executable, "-m", "ckptcheck", "parity", "judge", "off.safetensors", "step0.safetensors"]
    first, again = (
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=False).stdout
        for seed in "12"
    )
    assert first == again
    assert b"PAR020" in first


def test_the_exact_kl_both_ways_is_shown_where_distributions_are_recorded(here: Path) -> None:
    rollouts = draw_rollouts(sequences=8, full=4)
    rows = np.log([[0.5, 0.25, 0.125, 0.125]] * 3).astype("<f4")
    rollouts = rollouts.with_columns(engine_full_logprobs=rows, trainer_full_logprobs=rows[:, ::-1].copy())
    write_rollouts(rollouts, here / "full.safetensors")
    found = json.loads(judge("full.safetensors", "--format", "json", "--set", "max-kl=9", cwd=here).stdout)
    (section,) = [each for each in found["sections"] if each["title"] == "whole distributions of 3 tokens"]
    by = dict(section["rows"])
    assert by["KL(engine ‖ trainer)"] == pytest.approx(0.5 * log(4) + 0.25 * log(2) - 0.125 * log(2) - 0.125 * log(4))
    assert by["KL(trainer ‖ engine)"] == pytest.approx(by["KL(engine ‖ trainer)"])
    lone = json.loads(judge("step0.safetensors", "--format", "json", cwd=here).stdout)["sections"]
    assert not [each for each in lone if each["title"].startswith("whole")]


@pytest.mark.parametrize("form", ["json", "sarif", "junit", "github"])
def test_every_form_has_the_finding(here: Path, form: str) -> None:
    assert "PAR020" in judge("off.safetensors", "--format", form, cwd=here).stdout


def test_it_loads_no_framework(here: Path) -> None:
    program = (
        "import os, sys; from ckptcheck.__main__ import main\n"
        "os._exit = sys.exit  # which main() calls where nothing is left to do\n"
        "sys.argv[1:] = ['parity', 'judge', 'off.safetensors', '--format', 'json']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'vllm', 'matplotlib'} & sys.modules.keys()), file=sys.stderr)"
    )
    found = subprocess.run([sys.executable, "-c", program], cwd=here, capture_output=True, text=True, check=False)
    assert found.stderr == "[]\n"


def test_worst_tokens_are_decoded(here: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    Tokenizer(WordLevel({f"word{n}": n for n in range(100)}, unk_token="word0")).save(str(here / "tokenizer.json"))
    told = judge("off.safetensors", "--tokenizer", here, cwd=here).stdout
    assert "'word" in told
    # the texts themselves, as a guide asks: is the generated text coherent?
    assert "end of the prompt" in told
    first = " ".join(f"word{token}" for token in draw_rollouts(sequences=8).tokens[4:7])
    assert first in told
    (here / "tokenizer.json").write_text("{}")
    found = judge("off.safetensors", "--tokenizer", here, cwd=here)
    assert found.returncode == 2
    assert "cannot read the tokenizer" in found.stderr


def test_the_histogram_counts_every_token() -> None:
    from ckptcheck.reporters.pictures.token_gaps import sum_tokens
    from ckptcheck.rollouts.rollout_evidence import RolloutEvidence

    rollouts = change_column(
        draw_rollouts(sequences=8), {"column": "trainer_logprobs", "sequence": 1, "at": 9, "number": 1, "add": -50}
    )
    sums = sum_tokens(RolloutEvidence("x", rollouts))
    assert sums.gaps.sum() == 256
    assert (sums.gap_edges[0], sums.gap_edges[-1], sums.gaps[0]) == (-6, 6, 1)


def write_run(folder: Path, seed: int, part: int = 99) -> None:
    """Twelve steps of a run, whose engine gets worse from the step `part` on."""
    folder.mkdir()
    for step in range(12):
        about = {"step": step, "trainer": {"weight_version": str(step + 1)}}
        noise = 0.1 if step >= part else 0.02
        drawn = draw_rollouts(
            sequences=16, seed=seed + step, noise=noise, reward=0.5, versions=str(step), metadata=about
        )
        write_rollouts(drawn, folder / f"step{step}.safetensors")


def test_a_run_against_another(here: Path) -> None:
    write_run(here / "v0", 0)
    write_run(here / "v1", 100, part=4)
    write_run(here / "fixed", 200)
    found = judge("v1", "--against", "v0", "--no-limits", "--format", "json", cwd=here)
    assert found.returncode == 1
    reports = json.loads(found.stdout)["reports"]
    assert reports == ckptcheck.judge("v1", against="v0", no_limits=True).to_dict()["reports"]
    # steps 10 and 11 come after step 9
    assert [report["target"] for report in reports[9:12]] == [f"v1/step{step}.safetensors" for step in (9, 10, 11)]
    series, last = reports[-2:]
    assert [section["title"] for section in series["sections"]] == [
        "over the files",
        "curves: a trainer's metrics, step by step",
    ]
    assert series["sections"][1]["columns"][:3] == ["step", "ratio", "lag"]
    assert [finding["code"] for finding in last["findings"]] == ["PAR043"]
    assert last["findings"][0]["message"].startswith("clip rate is the first curve of the gap to diverge, at step 4: ")
    verdicts = {row[0]: (row[1], row[-1]) for row in last["sections"][0]["rows"]}
    assert verdicts["k3"] == (4, "diverges, worse")
    assert verdicts["lag"] == verdicts["reward"] == verdicts["ratio"] == (None, "follows")
    sound = judge("fixed", "--against", "v0", "--no-limits", cwd=here)
    assert sound.returncode == 0
    assert "12 steps in common · no curve diverges" in sound.stdout
    (here / "empty").mkdir()
    assert "empty holds no .safetensors and no .jsonl file" in judge("fixed", "--against", "empty", cwd=here).stderr


def test_a_run_begins_with_a_summary_of_a_page(here: Path) -> None:
    write_run(here / "v0", 0)
    write_run(here / "v1", 100, part=4)
    page = judge("v1", "--against", "v0", cwd=here).stdout
    assert len(page.splitlines()) <= 50
    # the run first, then each kind of finding once, with its steps
    assert (
        page.index("12 files: ")
        < page.index("PAR043")
        < page.index("PAR020 gap-beyond-limit  in 8 of 12 files: step 4")
    )
    assert "in 8 of 12 files: step 4 to step 11\n" in page
    assert "in 4 of 12 files: step 0 to step 3\n" in page
    assert "worst tokens" not in page
    assert page.count("PAR029") == 1
    alone = judge("v1", cwd=here).stdout
    (row,) = [line.split() for line in alone.splitlines() if line.startswith("  clip rate ")]
    assert row[:4] == ["clip", "rate", "0", "0"]
    assert "  no change: lag 1, clip rate of sequences 0, response length 32, cut off 1\n" in alone
    whole = judge("v1", "-v", cwd=here).stdout
    assert whole.count("worst tokens") == 12
    assert whole.splitlines()[1] == alone.splitlines()[1]


def test_rewards_are_curves_where_nothing_is_compared(here: Path) -> None:
    for step in range(3):
        drawn = draw_rollouts(trainer=False, rewards=[step, 0], response=8 + step, metadata={"step": step})
        write_rollouts(drawn, here / f"unscored{step}.safetensors")
    page = judge(*(f"unscored{step}.safetensors" for step in range(3)), cwd=here).stdout
    assert "PAR006 nothing-compared  in 3 of 3 files: step 0 to step 2\n" in page
    rows = {line[2:17].strip(): line.split()[-6:] for line in page.splitlines()}
    assert rows["reward"] == ["0", "0", "0", "1", "2", "1"]
    assert rows["response length"] == ["8", "8", "0", "10", "2", "10"]


def test_columns_that_no_rule_judges_are_named(here: Path) -> None:
    from safetensors import safe_open
    from safetensors.numpy import save_file

    write_rollouts(draw_rollouts(finish=["stop"]), here / "a.safetensors")
    with safe_open(here / "a.safetensors", "np") as file:
        columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        save_file(columns | {"returns": np.zeros(3, "<f4")}, here / "b.safetensors", file.metadata())
    ignored = ["returns", "finish (no stop tokens and no rewards are known)"]
    assert ckptcheck.judge("b.safetensors").read == {"not judged": ignored}
    write_lines(draw_rollouts(), here / "c.jsonl")
    first, *rest = (here / "c.jsonl").read_text().splitlines(keepends=True)
    (here / "c.jsonl").write_text("".join([first.replace('{"tokens"', '{"returns": "F32", "tokens"'), *rest]))
    assert ckptcheck.judge("c.jsonl").read == {"not judged": ["returns"]}


def test_files_without_steps_are_called_by_their_names(here: Path) -> None:
    page = judge("off.safetensors", "off.safetensors", "step0.safetensors", cwd=here).stdout
    assert "in 2 of 3 files: off.safetensors, off.safetensors\n" in page
    broken = judge("broken.safetensors", "step0.safetensors", cwd=here)
    assert "PAR001 malformed-rollouts  in 1 of 2 files: broken.safetensors\n" in broken.stdout
    assert broken.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (
            {},
            "nothing in the file names a cause: ckptcheck parity why off.safetensors MODEL tries causes one after the other",
        ),
        ({"metadata": {"model": "org/m"}}, "ckptcheck parity why off.safetensors org/m"),
        ({"metadata": {"sampling": {"temperature": 0.7}}}, "divided by the temperature 0.7: ckptcheck preflight JOB"),
        ({"metadata": {"sampling": {"temperature": 0.7}, "logprobs": "raw"}}, "ckptcheck parity why"),
        ({"reference": True}, "ckptcheck parity why"),
    ],
)
def test_the_hint_after_a_gap_is_one_command(arguments: dict[str, Any], hint: str, here: Path) -> None:
    rollouts = change_column(draw_rollouts(sequences=8, **arguments), {"column": "trainer_logprobs", "add": -0.3})
    if arguments.get("reference"):
        rollouts = change_column(rollouts, {"column": "reference_logprobs", "add": -0.3})
    write_rollouts(rollouts, here / "off.safetensors")
    assert hint in _hint_of_the_gap()


@pytest.mark.parametrize(("facts", "command"), [({}, "refit"), ({"adapter": "lora, rank 8"}, "refit lora")])
def test_the_hint_where_the_engine_has_the_weights_of_the_reference(
    facts: dict[str, str], command: str, here: Path
) -> None:
    rollouts = draw_rollouts(sequences=8, reference=True, metadata={"trainer": {"name": "verl", "facts": facts}})
    write_rollouts(change_column(rollouts, {"column": "trainer_logprobs", "add": -0.3}), here / "off.safetensors")
    hints = {finding.code: finding.hint for finding in ckptcheck.judge("off.safetensors").findings}
    assert hints["PAR088"] == f"ckptcheck {command} shows what reaches the engine"
    assert hints["PAR020"] == "fix first what PAR088 names: this may follow from it"


def _hint_of_the_gap() -> str:
    (hint,) = [finding.hint for finding in ckptcheck.judge("off.safetensors").findings if finding.code == "PAR020"]
    assert hint is not None
    return hint


def test_clip_bounds_are_flags_or_in_the_file(here: Path) -> None:
    def clipped(*arguments: object) -> list[float]:
        report = json.loads(judge(*arguments, "--no-limits", "--format", "json", cwd=here).stdout)
        rows = dict(row[:2] for row in report["sections"][0]["rows"])
        return [rows["clipped_low"], rows["clipped_high"], rows["clipped"]]

    # the trainer is 0.2 nats below the engine everywhere: the ratio is 0.8187
    assert clipped("off.safetensors") == [0, 0, 0]
    assert clipped("off.safetensors", "--set", "clip-low=0.1") == [1, 0, 1]
    assert clipped("off.safetensors", "--set", "clip-high=0.1") == [0, 0, 0]
    convert_rollouts("off.safetensors", "bounds.safetensors", clip_low=0.15, clip_high=0.28)
    assert clipped("bounds.safetensors") == [1, 0, 1]
    assert clipped("bounds.safetensors", "--set", "clip-low=0.2") == [0, 0, 0]
    said = judge("bounds.safetensors", "--no-limits", cwd=here).stdout
    assert "clipped: the ratio is below 0.85 or above 1.28" in said


@pytest.mark.parametrize("gap", [0.0, 0.2])
def test_prompts_without_responses_are_judged_by_their_own_logprobs(gap: float, tmp_path: Path) -> None:
    engine = [[-1.0 - 0.01 * token for token in range(30)] for _ in range(8)]
    rollouts = build_rollouts(
        Rollout(list(range(40, 70)), 30, engine=row, trainer=[value - gap for value in row]) for row in engine
    )
    write_rollouts(rollouts, tmp_path / "prompts.safetensors")
    report = ckptcheck.judge([tmp_path / "prompts.safetensors"]).reports[0]
    assert "8 prompts without their responses" in report.subject
    codes = {finding.code for finding in report.findings}
    assert ("PAR020" in codes) == bool(gap)
    assert not codes & {"PAR006", "PAR007"}


def test_exact(here: Path) -> None:
    write_rollouts(draw_rollouts(sequences=8, noise=0.0), here / "equal.safetensors")
    assert judge("equal.safetensors", "--exact", cwd=here).returncode == 0
    one_bit = {"column": "trainer_logprobs", "sequence": 5, "at": 17, "number": 1, "times": 1.0000001}
    write_rollouts(change_column(draw_rollouts(sequences=8, noise=0.0), one_bit), here / "bit.safetensors")
    assert judge("bit.safetensors", cwd=here).returncode == 0
    found = judge("bit.safetensors", "--exact", cwd=here)
    assert found.returncode == 1
    assert "sequence 5, token 17" in found.stdout
    assert "ulp of float32" in found.stdout


def test_versions_are_labels(here: Path) -> None:
    record = Record(here / "syncs.jsonl")
    for version, digest in (("0", "a"), ("1", "b"), ("1", "c")):
        record.append(SyncRecord(version=version, held={"0/w": digest}))
    assert judge("step0.safetensors", "--history", "syncs.jsonl", cwd=here).returncode == 0
    found = judge("step1.safetensors", "--history", "syncs.jsonl", cwd=here)
    assert found.returncode == 1
    assert "version 1 stands for two sets of weights: 1 of 1 tensor differ" in found.stdout
    assert judge("step1.safetensors", "--history", "step0.jsonl", cwd=here).returncode == 2


def findings_of(report: dict[str, object]) -> list[tuple[str, str]]:
    """Return code and place of each finding: ``job.yaml:3 key``."""
    found = report["findings"]
    assert isinstance(found, list)
    return [(each["code"], f"{each.get('file')}:{each.get('line')} {each.get('key')}") for each in found]


NEMO_RL = """
policy:
  generation: {backend: vllm, temperature: 1.0}
loss_fn:
  use_importance_sampling_correction: true
  sequence_level_importance_ratios: true
grpo:
  async_grpo: {enabled: true, max_trajectory_age_steps: 3}
"""


def test_a_job_is_held_against_its_rollouts(here: Path) -> None:
    def run(*arguments: object) -> dict[str, object]:
        return dict(json.loads(judge(*arguments, "--no-limits", "--format", "json", cwd=here).stdout))

    (here / "job.yaml").write_text(NEMO_RL)
    drawn = draw_rollouts(
        response=1000, noise=0.01, bias=-0.003, versions="4", metadata={"trainer": {"weight_version": "7"}}
    )
    write_rollouts(drawn, here / "long.safetensors")
    assert findings_of(run("long.safetensors")) == [("PAR012", "None:None None"), ("PAR084", "None:None None")]
    told = run("long.safetensors", "--job", "job.yaml")
    # Three versions are what the job allows.
    assert findings_of(told) == [("PAR084", "job.yaml:6 loss_fn.sequence_level_importance_ratios")]
    assert told == ckptcheck.judge("long.safetensors", job="job.yaml", no_limits=True).to_dict()
    # What an option says wins, of the job and of judge.
    by_token = ("--job", "job.yaml", "--job", "loss_fn.sequence_level_importance_ratios=false")
    assert findings_of(run("long.safetensors", *by_token)) == []
    again = run("long.safetensors", *by_token, "--set", "max-lag=2")
    assert findings_of(again) == [("PAR012", "job.yaml:8 grpo.async_grpo.max_trajectory_age_steps")]
    missing = judge("long.safetensors", "--job", "no.yaml", cwd=here)
    assert (missing.returncode, missing.stderr) == (2, "no.yaml does not exist\n")


def test_a_job_is_read_without_our_environment(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T", "0.5")
    monkeypatch.setenv("WANDB_API_KEY", "of-this-shell")
    (here / "job.sh").write_text(
        "export WANDB_API_KEY=of-the-job\n"
        "trl grpo --model_name_or_path org/m --use_vllm true --num_generations 8 --temperature $T --top_p 0.9\n"
    )
    said = judge("step0.safetensors", "--job", "job.sh", "-v", cwd=here).stdout
    assert "job.sh:2 --top_p" in said
    assert "0.5" not in said.split("gap\n")[0]
    assert "of-this-shell" not in said
    assert "of-the-job" not in said


def test_a_replay_is_an_option(here: Path) -> None:
    drawn = change_column(
        draw_rollouts(sequences=8, layers=4),
        {"column": "trainer_routing", "sequence": 3, "at": 9, "number": 1, "add": 1},
    )
    write_rollouts(drawn, here / "routed.safetensors")
    assert judge("routed.safetensors", cwd=here).returncode == 0
    assert judge("routed.safetensors", "--replay", cwd=here).returncode == 1


@pytest.mark.parametrize(("early", "expected"), [(0.0, 30), (3.0, 15)])
def test_a_curve_that_leaves_twice_parts_where_it_left_first(early: float, expected: int) -> None:
    """Three standard deviations from step 15 on, of which no step is beyond the noise, and twelve from step 30 on."""
    (curve,) = (each for each in CURVES if each.name == "reward")
    theirs, noise = (np.random.default_rng(seed).standard_normal(40).tolist() for seed in (3, 4))
    shift = [0.0] * 15 + [early] * 15 + [12.0] * 10
    run = {step: noise[step] + shift[step] for step in range(40)}
    reference = dict(enumerate(theirs))
    found = compare_curves(curve, run, reference)
    assert found is not None
    assert found.parting is not None
    assert abs(found.parting - expected) <= (2 if early else 0)
