"""The Python API and the command give the same report for the same input, and raise where the command exits with 2."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import live
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

import ckptcheck
from ckptcheck.cli.app import build_app
from ckptcheck.compare.manifest import Manifest
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.report import FindingsError, Report, Reports
from ckptcheck.live.experiments.live_session import LiveSession
from ckptcheck.live.refit.live_trial import TrialQuantization
from ckptcheck.live.refit.recording import RecordError
from ckptcheck.live.runtime.engines import registry
from ckptcheck.live.runtime.trainers import registry as trainers
from ckptcheck.rollouts import write_rollouts
from tests.doubles.fake_serving import FakeServing
from tests.doubles.junk_server import JunkServer, sglang
from tests.factories import localize_cases
from tests.factories.checkpoint_cases import CHECKPOINTS, MEGATRON
from tests.factories.history_cases import build_history
from tests.factories.probe_cases import ScoringTrainer
from tests.factories.rollout_cases import draw_rollouts
from tests.live.refit.test_trouble import place, write_stand_ins  # noqa: F401 - a fixture

RUN = sorted(MEGATRON.iterdir())[0]
JOB = """\
actor_rollout_ref:
  model: {path: tiny}
  rollout: {name: vllm, temperature: 0.7}
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the verbs read; the tests run in copies of it."""
    folder = tmp_path_factory.mktemp("inputs")
    shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", folder / "sound")
    shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", folder / "broken")
    (folder / "broken/model-00002-of-00003.safetensors").unlink()
    shutil.copytree(RUN, folder / "run")
    live.write("llama", folder / "tiny")
    write_rollouts(draw_rollouts(noise=0.001), folder / "close.safetensors")
    write_rollouts(draw_rollouts(noise=0.3), folder / "apart.safetensors")
    build_history({"syncs": [{"step": step, "version": str(step)} for step in range(3)]}, folder / "record.jsonl")
    (folder / "job.yaml").write_text(JOB, encoding="utf-8")
    return folder


@pytest.fixture
def here(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(inputs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_command(*words: str) -> tuple[Any, int]:
    """Return the JSON that the command prints, and its exit code."""
    result = CliRunner().invoke(build_app(), [*words, "--format", "json"], catch_exceptions=False)
    return json.loads(result.stdout), result.exit_code


def as_json(result: Report | Reports) -> Any:
    return json.loads(json.dumps(result.to_dict()))


Call = Callable[[], Report | Reports]
SAME: dict[str, tuple[tuple[str, ...], Call]] = {
    "clean": (("scan", "sound"), lambda: ckptcheck.scan("sound")),
    "findings": (("scan", "broken"), lambda: ckptcheck.scan(Path("broken"))),
    "headers": (("scan", "sound", "--headers-only"), lambda: ckptcheck.scan("sound", headers_only=True)),
    "selection": (
        ("scan", "broken", "--select", "IDX,CFG", "--ignore", "IDX001"),
        lambda: ckptcheck.scan("broken", select=["IDX", "CFG"], ignore=["IDX001"]),
    ),
    "several": (("scan", "nowhere", "sound", "broken"), lambda: ckptcheck.scan(["nowhere", "sound", "broken"])),
    "consumers": (
        ("scan", "sound", "--consumers", "vllm,slime"),
        lambda: ckptcheck.scan("sound", consumers=["vllm", "slime"]),
    ),
    "run": (("scan", "run"), lambda: ckptcheck.scan("run")),
    "equal": (("diff", "sound", "sound"), lambda: ckptcheck.diff("sound", "sound")),
    "different": (("diff", "sound", "tiny", "--atol", "0.1"), lambda: ckptcheck.diff("sound", "tiny", atol=0.1)),
    "verified": (("verify", "sound", "sound.json"), lambda: ckptcheck.verify("sound", ckptcheck.manifest("sound"))),
    "changed": (("verify", "tiny", "sound.json"), lambda: ckptcheck.verify("tiny", "sound.json")),
    "job": (("preflight", "job.yaml", "--settings"), lambda: ckptcheck.preflight("job.yaml", show_settings=True)),
    "override": (
        ("preflight", "job.yaml", "actor_rollout_ref.rollout.temperature=1", "--no-scan"),
        lambda: ckptcheck.preflight("job.yaml", "actor_rollout_ref.rollout.temperature=1", scan_checkpoints=False),
    ),
    "record": (("refit", "history", "record.jsonl"), lambda: ckptcheck.history("record.jsonl")),
    "judged": (("parity", "judge", "apart.safetensors"), lambda: ckptcheck.judge("apart.safetensors")),
    "series": (
        (
            "parity",
            "judge",
            "close.safetensors",
            "apart.safetensors",
            "--set",
            "max-kl=0.5",
            "--floor",
            "close.safetensors",
        ),
        lambda: ckptcheck.judge(["close.safetensors", "apart.safetensors"], max_kl=0.5, floor="close.safetensors"),
    ),
    "unlimited": (
        ("parity", "judge", "apart.safetensors", "--no-limits"),
        lambda: ckptcheck.judge("apart.safetensors", no_limits=True),
    ),
    "explained": (("parity", "why", "apart.safetensors"), lambda: ckptcheck.parity_why("apart.safetensors")),
}


@pytest.mark.parametrize("case", SAME)
def test_the_command_prints_what_the_function_returns(case: str, here: Path) -> None:
    words, call = SAME[case]
    CliRunner().invoke(build_app(), ["manifest", "sound", "-o", "sound.json"], catch_exceptions=False)
    printed, code = run_command(*words)
    result = call()
    assert printed == as_json(result)
    assert code == result.exit_code()


def test_a_manifest_is_the_file_that_the_command_writes(here: Path) -> None:
    CliRunner().invoke(build_app(), ["manifest", "run", "-o", "run.json"], catch_exceptions=False)
    built = ckptcheck.manifest("run")
    assert isinstance(built, Manifest)
    assert json.loads((here / "run.json").read_text(encoding="utf-8")) == json.loads(json.dumps(built.to_dict()))
    ckptcheck.manifest("run", "again.json")
    assert (here / "again.json").read_bytes() == (here / "run.json").read_bytes()


def test_converted_rollouts_are_the_file_that_the_command_writes(here: Path) -> None:
    words = ["parity", "convert", "close.safetensors", "-o", "converted.jsonl", "--step", "7", "--trainer-version", "3"]
    CliRunner().invoke(build_app(), words, catch_exceptions=False)
    converted = ckptcheck.convert_rollouts(["close.safetensors"], "again.jsonl", step=7, trainer_version=3)
    assert converted.metadata.step == 7
    assert (here / "again.jsonl").read_bytes() == (here / "converted.jsonl").read_bytes()


def test_repairs_are_previewed_and_made(here: Path) -> None:
    index = here / "sound/model.safetensors.index.json"
    index.write_text(
        index.read_text(encoding="utf-8").replace('"total_size": 8032', '"total_size": 1'), encoding="utf-8"
    )
    result = CliRunner().invoke(build_app(), ["scan", "sound", "--diff"], catch_exceptions=False)
    assert ckptcheck.preview_repairs(["sound"]) == result.stdout
    assert result.exit_code == 1
    assert not ckptcheck.scan("sound", fix=True).findings
    assert ckptcheck.preview_repairs(["sound"]) == ""


def test_a_baseline_and_settings_count_as_for_the_command(here: Path) -> None:
    (here / "ckptcheck.toml").write_text('fail-on = "warning"\n[severity]\nIDX001 = "warning"\n', encoding="utf-8")
    report = ckptcheck.scan("broken")
    assert (report.fail_on, report.exit_code(), report.exit_code("error")) == ("warning", 1, 0)
    with pytest.raises(FindingsError, match="warning IDX001 missing-shard"):
        report.raise_for_findings()
    report.raise_for_findings("error")
    ckptcheck.scan("broken", write_baseline="known.json", stats="stats.json", select=["IDX"])
    printed, code = run_command("scan", "broken", "--baseline", "known.json", "--select", "IDX")
    assert printed == as_json(ckptcheck.scan("broken", baseline="known.json", select=["IDX"]))
    assert (printed["known"], code) == (1, 0)


# --- live verbs, on fakes ---


class FileTrainer(ScoringTrainer):
    """Scores with a checkpoint's weights."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        super().__init__(folder)
        self._held = load_file(checkpoint / "model.safetensors")

    def save(self, folder: Path) -> None:
        """Write the weights."""
        folder.mkdir()
        super().save(folder)

    def close(self) -> None:
        """End nothing."""


@pytest.fixture
def fakes(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a fake engine and a fake trainer in the place of real ones."""

    def engine(checkpoint: Path, *, dtype: str, context_len: int, switches: Any, **_: Any) -> FakeServing:
        weights = load_file(checkpoint / "model.safetensors")
        return FakeServing(weights, ["batch"], switches=switches, length=context_len, dtype=dtype, ends=(2,))

    monkeypatch.setattr(registry, "ENGINES", {"vllm": engine})
    monkeypatch.setattr(LiveSession, "start_trainer", lambda self, *_, **__: FileTrainer(here, here / "tiny"))
    return here


@pytest.mark.slow
def test_recorded_and_scored_rollouts_are_the_files_that_the_commands_write(fakes: Path) -> None:
    invoke = CliRunner().invoke
    invoke(
        build_app(),
        ["parity", "record", "tiny", "-o", "r.jsonl", "--number", "2", "--length", "20"],
        catch_exceptions=False,
    )
    recorded = ckptcheck.record_rollouts("tiny", "r2.jsonl", number=2, length=20)
    assert (recorded.sequence_count, (fakes / "r.jsonl").read_bytes()) == (2, (fakes / "r2.jsonl").read_bytes())
    invoke(build_app(), ["parity", "score", "r.jsonl", "tiny", "-o", "s.jsonl"], catch_exceptions=False)
    scored = ckptcheck.score_rollouts("r2.jsonl", "tiny", "s2.jsonl")
    assert "trainer_logprobs" in scored
    assert (fakes / "s.jsonl").read_bytes() == (fakes / "s2.jsonl").read_bytes()
    printed, _ = run_command("parity", "why", "s.jsonl", "tiny")
    assert printed == as_json(ckptcheck.parity_why("s.jsonl", "tiny"))


def test_a_calibrated_floor_is_the_file_that_the_command_writes(fakes: Path) -> None:
    words = ["parity", "calibrate", "tiny", "-o", "floor.json", "--number", "2", "--length", "20", "--response", "6"]
    printed = CliRunner().invoke(build_app(), words, catch_exceptions=False).stdout
    measurement = ckptcheck.calibrate_floor("tiny", "floor2.json", number=2, length=20, response=6)
    assert (fakes / "floor.json").read_bytes() == (fakes / "floor2.json").read_bytes()
    assert measurement.section().title in printed


LIVE: dict[str, tuple[tuple[str, ...], Call]] = {
    "matrix": (
        ("parity", "matrix", "tiny", "--lengths", "30", "--batch", "1,3", "--repeats", "1", "--response", "6"),
        lambda: ckptcheck.parity_matrix("tiny", lengths=[30], batch=[1, 3], repeats=1, response=6),
    ),
    "probe": (
        ("parity", "probe", "tiny", "--only", "semantics", "--only", "padding", "--temperature", "1"),
        lambda: ckptcheck.parity_probe("tiny", only=["semantics", "padding"], temperature=1),
    ),
}


@pytest.mark.parametrize("case", LIVE)
@pytest.mark.slow
def test_live_commands_print_what_the_function_returns(case: str, fakes: Path) -> None:
    words, call = LIVE[case]
    printed, code = run_command(*words)
    result = call()
    assert printed == as_json(result)
    assert code == result.exit_code()


class CapturingSide:
    """A trainer or an engine whose modules give out made-up activations."""

    def __init__(self, name: str, activations: Any) -> None:
        self.info = SimpleNamespace(name=name, layout="")
        self._activations = activations

    def capture_activations(self, tokens: Any, folder: Path) -> Any:
        """Return the activations, whatever the prompt."""
        return self._activations

    def close(self) -> None:
        """End nothing."""


def test_localize_prints_what_the_function_returns(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = {"do": [{"point": "model.layers.1.self_attn.o_proj", "how": "factor", "by": 2.0}]}
    evidence = localize_cases.build_localization(case)
    monkeypatch.setattr(trainers, "start_trainer", lambda *_, **__: CapturingSide("transformers", evidence.reference))
    monkeypatch.setattr(registry, "start_engine", lambda *_, **__: CapturingSide("vllm", evidence.other))
    printed, code = run_command("parity", "localize", "tiny")
    report = ckptcheck.localize("tiny")
    assert printed == as_json(report)
    assert (code, report.findings[0].code) == (1, "LOC001")


def test_attach_prints_what_the_function_returns(here: Path) -> None:
    with JunkServer(sglang()) as first, JunkServer(sglang()) as second:
        words = ("attach", first.url, second.url, "--set", "timeout=score=5")
        printed, code = run_command(*words)
        report = ckptcheck.attach(first.url, second.url, timeout=["score=5"])
    assert printed == as_json(report)
    assert code == report.exit_code()


@pytest.mark.slow
def test_refit_prints_what_the_function_returns(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    environment = write_stand_ins(place, "")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    python = {"engine_python": place / "engine", "trainer_python": place / "trainer"}
    source = str(CHECKPOINTS / "tiny-llama")
    words = ("refit", source, "--trainer", "transformers", "--set", "bucket-mb=0.002", "--record", str(place / "first"))
    options = [word for name, path in python.items() for word in ("--set", f"{name.replace('_', '-')}={path}")]
    printed, code = run_command(*words, *options)
    report = ckptcheck.refit(source, trainer="transformers", bucket_mb=0.002, record=place / "second", **python)
    assert without_times(printed) == without_times(as_json(report))
    assert (code, report.verdict) == (0, "clean")
    assert (
        as_json(ckptcheck.history(place / "second"))["verdict"]
        == run_command("refit", "history", str(place / "first"))[0]["verdict"]
    )
    monkeypatch.setattr("ckptcheck.live.refit.recording.append_to_record", failing)
    with pytest.raises(RecordError, match="the disk is full") as caught:
        ckptcheck.refit(source, trainer="transformers", bucket_mb=0.002, record=place / "third", **python)
    assert caught.value.report.verdict == "clean"


def failing(*_: object) -> None:
    raise CkptcheckError("the disk is full")


def without_times(form: Any) -> Any:
    """Replace measured seconds and rates, which differ from run to run."""
    if isinstance(form, dict):
        return {name: without_times(value) for name, value in form.items()}
    if isinstance(form, list):
        return [without_times(value) for value in form]
    return 0 if isinstance(form, float) else form


# --- what it raises ---


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (("scan", "nowhere"), lambda: ckptcheck.scan("nowhere")),
        (
            ("scan", "sound", "--headers-only", "--stats", "x"),
            lambda: ckptcheck.scan("sound", headers_only=True, stats="x"),
        ),
        (("scan", "sound", "--select", "XYZ"), lambda: ckptcheck.scan("sound", select=["XYZ"])),
        (("scan", "sound", "--consumers", "vlm"), lambda: ckptcheck.scan("sound", consumers=["vlm"])),
        (("diff", "sound", "sound", "--cast", "int7"), lambda: ckptcheck.diff("sound", "sound", cast="int7")),
        (("verify", "sound", "job.yaml"), lambda: ckptcheck.verify("sound", "job.yaml")),
        (("preflight", "none.yaml"), lambda: ckptcheck.preflight("none.yaml")),
        (("refit", "history", "none"), lambda: ckptcheck.history("none")),
        (("refit", "tiny", "--transport", "owl"), lambda: ckptcheck.refit("tiny", transport="owl")),
        (("refit", "tiny", "--engine", "tgi"), lambda: ckptcheck.refit("tiny", engine="tgi")),
        (("attach", "http://127.0.0.1:1"), lambda: ckptcheck.attach("http://127.0.0.1:1")),
        (("parity", "judge", "none"), lambda: ckptcheck.judge("none")),
        (("parity", "matrix", "tiny", "--data", "odd"), lambda: ckptcheck.parity_matrix("tiny", data=["odd"])),
        (("parity", "probe", "tiny", "--only", "odd"), lambda: ckptcheck.parity_probe("tiny", only=["odd"])),
        (("parity", "why", "job.yaml"), lambda: ckptcheck.parity_why("job.yaml")),
        (("parity", "localize"), lambda: ckptcheck.localize()),
        (
            ("scan", "sound", "--headers-only", "--set", "no-mmap=on"),
            lambda: ckptcheck.scan("sound", headers_only=True, no_mmap=True),
        ),
        (
            ("parity", "judge", "close.safetensors", "--no-limits", "--set", "max-kl=1"),
            lambda: ckptcheck.judge("close.safetensors", no_limits=True, max_kl=1),
        ),
        (
            ("parity", "record", "tiny", "-o", "x", "--prompts", "y", "--length", "8"),
            lambda: ckptcheck.record_rollouts("tiny", "x", prompts="y", length=8),
        ),
        (
            ("parity", "matrix", "tiny", "--decoding", "greedy", "--temperature", "2"),
            lambda: ckptcheck.parity_matrix("tiny", decoding="greedy", temperature=2),
        ),
        (
            ("parity", "probe", "tiny", "--only", "length", "--compilation"),
            lambda: ckptcheck.parity_probe("tiny", only=["length"], compilation=True),
        ),
        (("parity", "why", "close.safetensors", "--tp", "2"), lambda: ckptcheck.parity_why("close.safetensors", tp=2)),
        (("parity", "localize", "--dumps", "a", "b", "--tp", "2"), lambda: ckptcheck.localize(dumps=("a", "b"), tp=2)),
        (
            ("refit", "tiny", "--steps", "0", "--set", "perturb=0.1"),
            lambda: ckptcheck.refit("tiny", steps=0, perturb=0.1),
        ),
        (
            ("attach", "http://127.0.0.1:1", "http://127.0.0.1:2", "--tp", "2"),
            lambda: ckptcheck.attach("http://127.0.0.1:1", "http://127.0.0.1:2", tp=2),
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_function_raises_the_error_of_the_command(words: tuple[str, ...], call: Call, here: Path) -> None:
    with pytest.raises(CkptcheckError) as of_command:
        build_app(words[0])(list(words), standalone_mode=False)
    with pytest.raises(CkptcheckError) as of_function:
        call()
    assert (of_function.value.message, of_function.value.hint) == (of_command.value.message, of_command.value.hint)


@pytest.mark.parametrize(
    "call",
    [
        lambda: ckptcheck.scan("sound", near_zero_threshold=float("nan")),
        lambda: ckptcheck.diff("sound", "sound", atol=float("inf")),
        lambda: ckptcheck.refit("tiny", dtype="float16"),  # type: ignore[arg-type]
        lambda: ckptcheck.refit("tiny", check_weights=False, check_logprobs=False),
        lambda: ckptcheck.judge([]),
        lambda: ckptcheck.scan([]),
        lambda: ckptcheck.attach(),
    ],
)  # fmt: skip
def test_a_function_refuses_what_the_options_would_not_accept(call: Call, here: Path) -> None:
    with pytest.raises(CkptcheckError):
        call()


@pytest.fixture
def nothing_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder, and fail where a process is started."""

    def start_process(*words: object, **_: object) -> None:
        raise AssertionError(f"a process was started: {words}")

    monkeypatch.setattr(subprocess.Popen, "__init__", start_process)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ckptcheck.refit("tiny", trainer_gpus="x"), "--set trainer-gpus: 'x' is no GPU"),
        (lambda: ckptcheck.refit("tiny", engine_gpus="0,0"), "--set engine-gpus: 0,0 names a GPU twice"),
        (lambda: ckptcheck.attach("http://127.0.0.1:1", trainer_gpus="0,,1"), "--set trainer-gpus: '' is no GPU"),
        (lambda: ckptcheck.parity_matrix("tiny", lengths=0), "--lengths takes whole numbers from 1 on, not 0"),
        (lambda: ckptcheck.parity_matrix("tiny", batch=[1, 0]), "--batch takes whole numbers from 1 on, not 0"),
        (lambda: ckptcheck.convert_rollouts([]), "there is nothing to convert"),
        (lambda: ckptcheck.preview_repairs([]), "there is nothing to scan"),
    ],
)
def test_a_malformed_argument_is_refused(call: Call, message: str, nothing_starts: None) -> None:
    with pytest.raises(CkptcheckError, match=f"^{message}"):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ckptcheck.scan(3), "scan takes a text or a path or several of these as targets, not 3"),  # type: ignore[arg-type]
        (lambda: ckptcheck.scan("sound", headers_only="no"), "scan takes True or False as headers_only, not 'no'"),  # type: ignore[arg-type]
        (lambda: ckptcheck.scan("sound", jobs="4"), "scan takes a whole number or None as jobs, not '4'"),  # type: ignore[arg-type]
        (lambda: ckptcheck.scan("sound", jobs=True), "scan takes a whole number or None as jobs, not True"),
        (lambda: ckptcheck.diff("sound", "sound", atol="1"), "diff takes a number as atol, not '1'"),  # type: ignore[arg-type]
        (lambda: ckptcheck.localize("tiny", tokens="1,2"), "localize takes a whole number, several of these or None as tokens"),  # type: ignore[arg-type]
        (lambda: ckptcheck.localize(dumps="ab"), "localize takes 2 values or None as dumps, not 'ab'"),  # type: ignore[arg-type]
        (lambda: ckptcheck.refit("tiny", dtype=16), "refit takes one of float32, bfloat16 as dtype, not 16"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_value_of_a_wrong_type_is_a_type_error(call: Call, message: str, nothing_starts: None) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
        call()


# --- one value in place of a list ---


def test_a_single_value_stands_for_a_list_of_one(here: Path) -> None:
    assert as_json(ckptcheck.scan("broken", select="IDX")) == as_json(ckptcheck.scan("broken", select=["IDX"]))
    assert as_json(ckptcheck.scan("broken", ignore="IDX001")) == as_json(ckptcheck.scan("broken", ignore=["IDX001"]))
    assert as_json(ckptcheck.scan("sound", consumers="vllm")) == as_json(ckptcheck.scan("sound", consumers=["vllm"]))
    assert as_json(ckptcheck.scan("broken")) == as_json(ckptcheck.scan(["broken"]))
    assert as_json(ckptcheck.scan(Path("broken"))) == as_json(ckptcheck.scan(["broken"]))
    assert as_json(ckptcheck.judge("close.safetensors")) == as_json(ckptcheck.judge(["close.safetensors"]))
    assert ckptcheck.convert_rollouts("close.safetensors").sequence_count
    assert ckptcheck.preview_repairs("sound") == ""


def test_an_incomplete_report_raises_for_findings(here: Path) -> None:
    reports = ckptcheck.scan(["sound", "nowhere"])
    assert (reports.verdict, len(reports), reports[0].verdict) == ("incomplete", 2, "clean")
    with pytest.raises(CkptcheckError, match="nowhere could not be checked: nowhere does not exist"):
        reports.raise_for_findings("never")
    with pytest.raises(FindingsError) as caught:
        ckptcheck.scan(["sound", "broken"]).raise_for_findings()
    assert caught.value.report.verdict == "findings"
    ckptcheck.scan("sound").raise_for_findings()


# --- the arguments, the import, the notebook ---


def test_an_exported_name_is_loaded_when_it_is_used() -> None:
    program = (
        "import sys, ckptcheck\n"
        "heavy = {'torch', 'transformers', 'numpy', 'safetensors', 'click', 'rich', 'pydantic'}\n"
        "inside = [name for name in sys.modules if name.startswith('ckptcheck.')]\n"
        "assert not inside, inside\n"
        "assert not heavy & set(sys.modules)\n"
        "from ckptcheck import Problem, Skip, rule, scan, refit\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        f"assert ckptcheck.scan({str(CHECKPOINTS / 'tiny-llama')!r}).verdict == 'clean'\n"
        "assert not {'torch', 'transformers', 'click', 'rich'} & set(sys.modules)\n"
        "assert ckptcheck.refit is refit and callable(refit)\n"
        "import ckptcheck.live.refit.trial\n"
        "assert ckptcheck.live.refit.trial.__name__ and callable(ckptcheck.refit) and callable(ckptcheck.preflight)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_exported_name_is_there() -> None:
    assert sorted(ckptcheck.__all__) == ckptcheck.__all__
    for name in ckptcheck.__all__:
        assert getattr(ckptcheck, name) is not None
    assert set(ckptcheck.__all__) <= set(dir(ckptcheck))
    with pytest.raises(AttributeError, match="nothing"):
        _ = ckptcheck.nothing
    assert inspect.signature(ckptcheck.refit) == inspect.signature(ckptcheck.refit)
    assert inspect.signature(ckptcheck.preflight) == inspect.signature(ckptcheck.preflight)


def test_a_notebook_shows_a_report_and_obeys_nothing_in_it(here: Path) -> None:
    index = here / "sound/model.safetensors.index.json"
    value = json.loads(index.read_text(encoding="utf-8"))
    value["weight_map"]["<script>alert(1)</script>\x1b[31m"] = "model-00001-of-00003.safetensors"
    index.write_text(json.dumps(value), encoding="utf-8")
    html = ckptcheck.scan(["sound", "broken"])._repr_html_()
    assert "<script" not in html
    assert "\x1b" not in html
    assert "&lt;script&gt;alert(1)" in html
    assert "IDX001" in html
    assert "http" not in html
    section = ckptcheck.judge("apart.safetensors")._repr_html_()
    assert "<table>" in section
    assert "mult_prob_error" in section


def test_an_observer_hears_what_the_terminal_shows(here: Path) -> None:
    class Listener(ckptcheck.Observer):
        def __init__(self) -> None:
            self.messages: list[str] = []

        def log(self, message: str) -> None:
            self.messages.append(message)

    listener = Listener()
    ckptcheck.manifest("sound", "sound.json", observer=listener)
    assert listener.messages == ["30 tensors written to sound.json"]


def test_quantization_that_an_engine_cannot_take_is_refused() -> None:
    assert TrialQuantization("w4a16").ignore is None
    with pytest.raises(CkptcheckError, match="16 bits"):
        ckptcheck.refit("tiny", quantize="w4a16")
    with pytest.raises(CkptcheckError, match="--set quantize-ignore has no effect without --quantize"):
        ckptcheck.refit("tiny", quantize_ignore=["lm_head"])


def test_a_report_is_short_in_a_session_and_whole_in_print() -> None:
    tiny, adapter = (CHECKPOINTS / name for name in ("tiny-llama", "tiny-lora"))
    one, two = ckptcheck.scan(tiny), ckptcheck.diff(tiny, tiny)
    assert repr(one) == f"<Reports <Report {tiny}: clean, {len(one.passed)} passed>>", "it iterates over reports"
    assert str(one).startswith(f"{tiny}\nLlamaForCausalLM")
    assert str(one).splitlines()[-2].startswith("✓ clean · ")
    assert one.to_html().startswith("<!doctype html>")
    assert two.to_html().startswith("<!doctype html>")
    assert [*two] == [*two.findings] == []
    several = ckptcheck.scan([tiny, adapter])
    assert repr(several).startswith("<Reports <Report ")
    assert "✓ all 2 checkpoints are clean" in str(several)
