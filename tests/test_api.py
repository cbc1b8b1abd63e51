"""The Python API and the command give the same report for the same input, and raise where the command exits with 2."""

from __future__ import annotations

import inspect
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import live
import pytest
import typer
from safetensors.numpy import load_file
from typer.testing import CliRunner

import ckptcheck
from ckptcheck import api
from ckptcheck.api import arguments
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
    "clean": (("scan", "sound"), lambda: api.scan("sound")),
    "findings": (("scan", "broken"), lambda: api.scan(Path("broken"))),
    "headers": (("scan", "sound", "--headers-only"), lambda: api.scan("sound", headers_only=True)),
    "selection": (
        ("scan", "broken", "--select", "IDX,CFG", "--ignore", "IDX001"),
        lambda: api.scan("broken", select=["IDX", "CFG"], ignore=["IDX001"]),
    ),
    "several": (("scan", "nowhere", "sound", "broken"), lambda: api.scan_all(["nowhere", "sound", "broken"])),
    "consumers": (
        ("scan", "sound", "--consumers", "vllm,slime"),
        lambda: api.scan("sound", consumers=["vllm", "slime"]),
    ),
    "run": (("scan", "run"), lambda: api.scan("run")),
    "equal": (("diff", "sound", "sound"), lambda: api.diff("sound", "sound")),
    "different": (("diff", "sound", "tiny", "--atol", "0.1"), lambda: api.diff("sound", "tiny", atol=0.1)),
    "verified": (("verify", "sound", "sound.json"), lambda: api.verify("sound", api.manifest("sound"))),
    "changed": (("verify", "tiny", "sound.json"), lambda: api.verify("tiny", "sound.json")),
    "job": (("preflight", "job.yaml", "--settings"), lambda: api.preflight("job.yaml", show_settings=True)),
    "override": (
        ("preflight", "job.yaml", "actor_rollout_ref.rollout.temperature=1", "--no-scan"),
        lambda: api.preflight("job.yaml", "actor_rollout_ref.rollout.temperature=1", scan_checkpoints=False),
    ),
    "record": (("refit", "history", "record.jsonl"), lambda: api.history("record.jsonl")),
    "judged": (("parity", "judge", "apart.safetensors"), lambda: api.judge("apart.safetensors")),
    "series": (
        (
            "parity",
            "judge",
            "close.safetensors",
            "apart.safetensors",
            "--max-kl",
            "0.5",
            "--floor",
            "close.safetensors",
        ),
        lambda: api.judge_all(["close.safetensors", "apart.safetensors"], max_kl=0.5, floor="close.safetensors"),
    ),
    "unlimited": (
        ("parity", "judge", "apart.safetensors", "--no-limits"),
        lambda: api.judge("apart.safetensors", no_limits=True),
    ),
    "explained": (("parity", "why", "apart.safetensors"), lambda: api.parity_why("apart.safetensors")),
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
    built = api.manifest("run")
    assert isinstance(built, Manifest)
    assert json.loads((here / "run.json").read_text(encoding="utf-8")) == json.loads(json.dumps(built.to_dict()))
    api.manifest("run", "again.json")
    assert (here / "again.json").read_bytes() == (here / "run.json").read_bytes()


def test_converted_rollouts_are_the_file_that_the_command_writes(here: Path) -> None:
    words = ["parity", "convert", "close.safetensors", "-o", "converted.jsonl", "--step", "7", "--trainer-version", "3"]
    CliRunner().invoke(build_app(), words, catch_exceptions=False)
    converted = api.convert_rollouts(["close.safetensors"], "again.jsonl", step=7, trainer_version=3)
    assert converted.metadata.step == 7
    assert (here / "again.jsonl").read_bytes() == (here / "converted.jsonl").read_bytes()


def test_repairs_are_previewed_and_made(here: Path) -> None:
    index = here / "sound/model.safetensors.index.json"
    index.write_text(
        index.read_text(encoding="utf-8").replace('"total_size": 8032', '"total_size": 1'), encoding="utf-8"
    )
    result = CliRunner().invoke(build_app(), ["scan", "sound", "--diff"], catch_exceptions=False)
    assert api.preview_repairs(["sound"]) == result.stdout
    assert result.exit_code == 1
    assert not api.scan("sound", fix=True).findings
    assert api.preview_repairs(["sound"]) == ""


def test_a_baseline_and_settings_count_as_for_the_command(here: Path) -> None:
    (here / "ckptcheck.toml").write_text('fail-on = "warning"\n[severity]\nIDX001 = "warning"\n', encoding="utf-8")
    report = api.scan("broken")
    assert (report.fail_on, report.exit_code(), report.exit_code("error")) == ("warning", 1, 0)
    with pytest.raises(FindingsError, match="warning IDX001 missing-shard"):
        report.raise_for_findings()
    report.raise_for_findings("error")
    api.scan("broken", write_baseline="known.json", stats="stats.json", select=["IDX"])
    printed, code = run_command("scan", "broken", "--baseline", "known.json", "--select", "IDX")
    assert printed == as_json(api.scan("broken", baseline="known.json", select=["IDX"]))
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
    recorded = api.record_rollouts("tiny", "r2.jsonl", number=2, length=20)
    assert (recorded.sequence_count, (fakes / "r.jsonl").read_bytes()) == (2, (fakes / "r2.jsonl").read_bytes())
    invoke(build_app(), ["parity", "score", "r.jsonl", "tiny", "-o", "s.jsonl"], catch_exceptions=False)
    scored = api.score_rollouts("r2.jsonl", "tiny", "s2.jsonl")
    assert "trainer_logprobs" in scored
    assert (fakes / "s.jsonl").read_bytes() == (fakes / "s2.jsonl").read_bytes()
    printed, _ = run_command("parity", "why", "s.jsonl", "tiny")
    assert printed == as_json(api.parity_why("s.jsonl", "tiny"))


def test_a_calibrated_floor_is_the_file_that_the_command_writes(fakes: Path) -> None:
    words = ["parity", "calibrate", "tiny", "-o", "floor.json", "--number", "2", "--length", "20", "--response", "6"]
    printed = CliRunner().invoke(build_app(), words, catch_exceptions=False).stdout
    measurement = api.calibrate_floor("tiny", "floor2.json", number=2, length=20, response=6)
    assert (fakes / "floor.json").read_bytes() == (fakes / "floor2.json").read_bytes()
    assert measurement.section().title in printed


LIVE: dict[str, tuple[tuple[str, ...], Call]] = {
    "matrix": (
        ("parity", "matrix", "tiny", "--lengths", "30", "--batch", "1,3", "--repeats", "1", "--response", "6"),
        lambda: api.parity_matrix("tiny", lengths=[30], batch=[1, 3], repeats=1, response=6),
    ),
    "probe": (
        ("parity", "probe", "tiny", "--only", "semantics", "--only", "padding", "--temperature", "1"),
        lambda: api.parity_probe("tiny", only=["semantics", "padding"], temperature=1),
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
    report = api.localize("tiny")
    assert printed == as_json(report)
    assert (code, report.findings[0].code) == (1, "LOC001")


def test_attach_prints_what_the_function_returns(here: Path) -> None:
    with JunkServer(sglang()) as first, JunkServer(sglang()) as second:
        words = ("refit", "--attach", first.url, "--attach", second.url, "--timeout", "score=5")
        printed, code = run_command(*words)
        report = api.attach(first.url, second.url, timeout=["score=5"])
    assert printed == as_json(report)
    assert code == report.exit_code()


@pytest.mark.slow
def test_refit_prints_what_the_function_returns(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    environment = write_stand_ins(place, "")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    python = {"engine_python": place / "engine", "trainer_python": place / "trainer"}
    source = str(CHECKPOINTS / "tiny-llama")
    words = ("refit", source, "--trainer", "transformers", "--bucket-mb", "0.002", "--record", str(place / "first"))
    options = [word for name, path in python.items() for word in (f"--{name.replace('_', '-')}", str(path))]
    printed, code = run_command(*words, *options)
    report = api.refit(source, trainer="transformers", bucket_mb=0.002, record=place / "second", **python)
    assert without_times(printed) == without_times(as_json(report))
    assert (code, report.verdict) == (0, "clean")
    assert (
        as_json(api.history(place / "second"))["verdict"]
        == run_command("refit", "history", str(place / "first"))[0]["verdict"]
    )
    monkeypatch.setattr("ckptcheck.live.refit.recording.append_to_record", failing)
    with pytest.raises(RecordError, match="the disk is full") as caught:
        api.refit(source, trainer="transformers", bucket_mb=0.002, record=place / "third", **python)
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
        (("scan", "nowhere"), lambda: api.scan("nowhere")),
        (("scan", "sound", "--headers-only", "--stats", "x"), lambda: api.scan("sound", headers_only=True, stats="x")),
        (("scan", "sound", "--select", "XYZ"), lambda: api.scan("sound", select=["XYZ"])),
        (("scan", "sound", "--consumers", "vlm"), lambda: api.scan("sound", consumers=["vlm"])),
        (("diff", "sound", "sound", "--cast", "int7"), lambda: api.diff("sound", "sound", cast="int7")),
        (("diff", "sound", "sound", "--bridge", "both"), lambda: api.diff("sound", "sound", bridge="both")),
        (("verify", "sound", "job.yaml"), lambda: api.verify("sound", "job.yaml")),
        (("preflight", "none.yaml"), lambda: api.preflight("none.yaml")),
        (("refit", "history", "none"), lambda: api.history("none")),
        (("refit", "tiny", "--transport", "owl"), lambda: api.refit("tiny", transport="owl")),
        (("refit", "tiny", "--engine", "tgi"), lambda: api.refit("tiny", engine="tgi")),
        (("refit", "--attach", "http://127.0.0.1:1"), lambda: api.attach("http://127.0.0.1:1")),
        (("parity", "judge", "none"), lambda: api.judge("none")),
        (("parity", "matrix", "tiny", "--data", "odd"), lambda: api.parity_matrix("tiny", data=["odd"])),
        (("parity", "probe", "tiny", "--only", "odd"), lambda: api.parity_probe("tiny", only=["odd"])),
        (("parity", "why", "job.yaml"), lambda: api.parity_why("job.yaml")),
        (("parity", "localize"), lambda: api.localize()),
        (("scan", "sound", "--headers-only", "--no-mmap"), lambda: api.scan("sound", headers_only=True, no_mmap=True)),
        (("scan", "hf://a/b", "--device", "cuda"), lambda: api.scan("hf://a/b", device="cuda")),
        (
            ("parity", "judge", "close.safetensors", "--no-limits", "--max-kl", "1"),
            lambda: api.judge("close.safetensors", no_limits=True, max_kl=1),
        ),
        (
            ("parity", "record", "tiny", "-o", "x", "--prompts", "y", "--length", "8"),
            lambda: api.record_rollouts("tiny", "x", prompts="y", length=8),
        ),
        (("parity", "matrix", "tiny", "--tp", "2"), lambda: api.parity_matrix("tiny", tp=2)),
        (
            ("parity", "probe", "tiny", "--only", "length", "--compilation"),
            lambda: api.parity_probe("tiny", only=["length"], compilation=True),
        ),
        (("parity", "why", "close.safetensors", "--tp", "2"), lambda: api.parity_why("close.safetensors", tp=2)),
        (("parity", "localize", "--dumps", "a", "b", "--tp", "2"), lambda: api.localize(dumps=("a", "b"), tp=2)),
        (("refit", "tiny", "--steps", "0", "--perturb", "0.1"), lambda: api.refit("tiny", steps=0, perturb=0.1)),
        (
            ("refit", "--attach", "http://127.0.0.1:1", "--attach", "http://127.0.0.1:2", "--tp", "2"),
            lambda: api.attach("http://127.0.0.1:1", "http://127.0.0.1:2", tp=2),
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
        lambda: api.scan("sound", near_zero_threshold=float("nan")),
        lambda: api.diff("sound", "sound", atol=float("inf")),
        lambda: api.diff("sound", "sound", bridge="other"),  # type: ignore[arg-type]
        lambda: api.refit("tiny", dtype="float16"),  # type: ignore[arg-type]
        lambda: api.refit("tiny", check_weights=False, check_logprobs=False),
        lambda: api.judge_all([]),
        lambda: api.scan_all([]),
        lambda: api.attach(),
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


def call_with(function: Callable[..., object], **arguments: object) -> CkptcheckError:
    """Return the error of a call with these arguments and "nowhere" for each required one."""
    parameters = inspect.signature(function).parameters.values()
    required = [
        parameter
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.name not in arguments
    ]
    several = ["nowhere" for parameter in required if parameter.kind is parameter.VAR_POSITIONAL]
    named = {parameter.name: "nowhere" for parameter in required if parameter.kind is not parameter.VAR_POSITIONAL}
    with pytest.raises(CkptcheckError) as caught:
        function(*several, **named, **arguments)
    return caught.value


def list_number_options() -> list[tuple[Callable[..., object], Any]]:
    """Pair every function with each option of its command that takes a number."""
    pairs: list[tuple[Callable[..., object], Any]] = []
    for command_name, command in commands().items():
        numbers = [option for option in command.params if option.type.name.split()[0] in ("int", "float")]
        for function in api_functions(command_name):
            arguments = inspect.signature(function).parameters
            pairs += [(function, option) for option in numbers if option.name in arguments]
    return pairs


def test_a_number_out_of_its_option_s_range_is_refused(nothing_starts: None) -> None:
    options = list_number_options()
    assert len({option.name for _, option in options}) > 30
    for function, option in options:
        name, is_whole = option.name, option.type.name.startswith("int")
        # the option's callback refuses negative fractions
        least = getattr(option.type, "min", None if is_whole else 0)
        most = getattr(option.type, "max", None)
        outside: list[object] = ["x"] if is_whole else [math.nan, math.inf, -math.inf]
        if least is not None:
            outside.append(least - 1 if is_whole else math.nextafter(least, -math.inf))
        if most is not None:
            outside.append(most + 1 if is_whole else math.nextafter(most, math.inf))
        refusal = f"{option.opts[0]} takes "
        for value in outside:
            assert call_with(function, **{name: value}).message.startswith(refusal), (function, name, value)
        for bound in (least, most):
            if bound is not None:
                assert refusal not in call_with(function, **{name: bound}).message, (function, name, bound)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: api.refit("tiny", trainer_gpus="x"), "--trainer-gpus: 'x' is no GPU"),
        (lambda: api.refit("tiny", engine_gpus="0,0"), "--engine-gpus: 0,0 names a GPU twice"),
        (lambda: api.attach("http://127.0.0.1:1", trainer_gpus="0,,1"), "--trainer-gpus: '' is no GPU"),
        (lambda: api.localize("tiny", tokens="1,2"), "--tokens takes ids, not 1,2"),  # type: ignore[arg-type]
        (lambda: api.localize(dumps="ab"), "--dumps takes two dumps"),  # type: ignore[arg-type]
        (lambda: api.parity_matrix("tiny", lengths=0), "--lengths takes whole numbers from 1 on, not 0"),
        (lambda: api.parity_matrix("tiny", batch=[1, 0]), "--batch takes whole numbers from 1 on, not 0"),
        (lambda: api.parity_matrix("tiny", lengths="10"), "--lengths takes .* not '10'"),  # type: ignore[arg-type]
        (lambda: api.convert_rollouts([]), "there is nothing to convert"),
        (lambda: api.preview_repairs([]), "there is nothing to scan"),
    ],
)
def test_a_malformed_argument_is_refused(call: Call, message: str, nothing_starts: None) -> None:
    with pytest.raises(CkptcheckError, match=f"^{message}"):
        call()


# --- one value in place of a list ---


def test_every_list_takes_a_single_string(nothing_starts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No function splits a string into its letters."""
    wrapped: list[tuple[object, ...]] = []
    original = arguments.wrap_single

    def wrap_single(values: Any) -> tuple[object, ...]:
        wrapped.append(original(values))
        return wrapped[-1]

    for name, module in list(sys.modules.items()):
        if name.startswith("ckptcheck.api.") and hasattr(module, "wrap_single"):
            monkeypatch.setattr(module, "wrap_single", wrap_single)
    checked = 0
    for function in (function for command_name in FUNCTIONS for function in api_functions(command_name)):
        for name, parameter in inspect.signature(function).parameters.items():
            if "Sequence[" in parameter.annotation:
                call_with(function, **{name: "unheard-of"})
                assert ("unheard-of",) in wrapped, (function, name)
                wrapped.clear()
                checked += 1
    assert checked > 30


def test_a_single_value_stands_for_a_list_of_one(here: Path) -> None:
    assert as_json(api.scan("broken", select="IDX")) == as_json(api.scan("broken", select=["IDX"]))
    assert as_json(api.scan("broken", ignore="IDX001")) == as_json(api.scan("broken", ignore=["IDX001"]))
    assert as_json(api.scan("sound", consumers="vllm")) == as_json(api.scan("sound", consumers=["vllm"]))
    assert as_json(api.scan_all("broken")) == as_json(api.scan_all(["broken"]))
    assert as_json(api.scan_all(Path("broken"))) == as_json(api.scan_all(["broken"]))
    assert as_json(api.judge_all("close.safetensors")) == as_json(api.judge_all(["close.safetensors"]))
    assert api.convert_rollouts("close.safetensors").sequence_count
    assert api.preview_repairs("sound") == ""


def test_an_incomplete_report_raises_for_findings(here: Path) -> None:
    reports = api.scan_all(["sound", "nowhere"])
    assert (reports.verdict, len(reports), reports[0].verdict) == ("incomplete", 2, "clean")
    with pytest.raises(CkptcheckError, match="nowhere could not be checked: nowhere does not exist"):
        reports.raise_for_findings("never")
    with pytest.raises(FindingsError) as caught:
        api.scan_all(["sound", "broken"]).raise_for_findings()
    assert caught.value.report.verdict == "findings"
    api.scan("sound").raise_for_findings()


# --- the arguments, the import, the notebook ---

FUNCTIONS = {
    "scan": api.scan,
    "diff": api.diff,
    "manifest": api.manifest,
    "identity": api.identity,
    "series": api.series,
    "verify": api.verify,
    "sign": api.sign,
    "join": api.join,
    "preflight": api.preflight,
    "gate": api.gate,
    "refit": api.refit,
    "critic": api.critic,
    "refit history": api.history,
    "parity judge": api.judge,
    "parity convert": api.convert_rollouts,
    "parity record": api.record_rollouts,
    "parity score": api.score_rollouts,
    "parity calibrate": api.calibrate_floor,
    "parity matrix": api.parity_matrix,
    "parity probe": api.parity_probe,
    "parity why": api.parity_why,
    "parity localize": api.localize,
    "refit lora": api.lora,
    "report": api.write_page,
}
FURTHER_FUNCTIONS: dict[str, tuple[Callable[..., object], ...]] = {
    "scan": (api.scan_all, api.preview_repairs),
    "refit": (api.attach,),
    "refit history": (api.follow_history,),
    "parity judge": (api.judge_all,),
}
"""Command → functions beside the one of its name that take some of its options."""
WITHOUT_FUNCTION = {"rules", "rule", "doctor", "engine install", "engine list", "engine remove"}
OF_THE_TERMINAL = {"format", "output", "fail_on", "verbose"}
"""Options about how a report is printed."""
OF_ATTACH = {"attach", "allow_write", "allow_remote"}
OF_CONFORMANCE = {"conformance", "markdown"}


def api_functions(command_name: str) -> list[Callable[..., object]]:
    """Return the functions that take the options of a command."""
    functions = [FUNCTIONS[command_name]] if command_name in FUNCTIONS else []
    return [*functions, *FURTHER_FUNCTIONS.get(command_name, ())]


def commands() -> dict[str, Any]:
    group = typer.main.get_command(build_app())
    found: dict[str, Any] = {}
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", {"": command})
        found |= {f"{name} {word}".strip(): each for word, each in inner.items()}
    return found


def test_every_verb_is_a_function_with_the_options_as_arguments() -> None:
    known = commands()
    assert set(known) == {*FUNCTIONS, *WITHOUT_FUNCTION}
    for name, function in FUNCTIONS.items():
        options = {param.name for param in known[name].params}
        shows_pictures = "format" in options and name not in ("gate", "identity")
        assert ("pictures" in inspect.signature(function).parameters) is shows_pictures, name
        if "fail_on" in options:
            options -= OF_THE_TERMINAL
        arguments = {*inspect.signature(function).parameters} - {"observer", "pictures"}
        options -= OF_ATTACH | OF_CONFORMANCE if name == "refit" else set()
        renamed = {"targets": "target", "files": "file", "diff": None, "part": None, "on": "runner"}
        # the file of a manifest
        arguments -= {"output"} if name == "join" else set()
        renamed |= {"files": "files"} if name == "report" else {}
        # only judge_all compares two runs
        renamed |= {"against": None} if name == "parity judge" else {}
        # only follow_history follows a record
        renamed |= {"watch": None} if name == "refit history" else {}
        # the function returns what the command writes
        renamed |= {"format": None} if name == "identity" else {}
        # a gate ends at findings of this severity
        arguments -= {"fail_on"} if name == "gate" else set()
        assert {renamed.get(option, option) for option in options if option} - {None} == arguments, name


def test_defaults_are_those_of_the_options() -> None:
    for name, function in FUNCTIONS.items():
        for param in commands()[name].params:
            argument = inspect.signature(function).parameters.get(param.name or "")
            if argument is None or argument.default is inspect.Parameter.empty or name == "parity matrix":
                continue
            default = getattr(param.default, "value", param.default)
            assert (default or None) == (argument.default or None) or argument.name == "trainer", (name, argument.name)


def test_an_exported_name_is_loaded_when_it_is_used() -> None:
    program = (
        "import sys, ckptcheck\n"
        "heavy = {'torch', 'transformers', 'numpy', 'safetensors', 'typer', 'rich', 'pydantic'}\n"
        "inside = [name for name in sys.modules if name.startswith('ckptcheck.')]\n"
        "assert not inside, inside\n"
        "assert not heavy & set(sys.modules)\n"
        "from ckptcheck import Problem, Skip, rule, scan, refit\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        f"assert ckptcheck.scan({str(CHECKPOINTS / 'tiny-llama')!r}).verdict == 'clean'\n"
        "assert not {'torch', 'transformers', 'typer', 'rich'} & set(sys.modules)\n"
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
    assert inspect.signature(ckptcheck.refit) == inspect.signature(api.refit)
    assert inspect.signature(ckptcheck.preflight) == inspect.signature(api.preflight)


def test_a_notebook_shows_a_report_and_obeys_nothing_in_it(here: Path) -> None:
    index = here / "sound/model.safetensors.index.json"
    value = json.loads(index.read_text(encoding="utf-8"))
    value["weight_map"]["<script>alert(1)</script>\x1b[31m"] = "model-00001-of-00003.safetensors"
    index.write_text(json.dumps(value), encoding="utf-8")
    html = api.scan_all(["sound", "broken"])._repr_html_()
    assert "<script" not in html
    assert "\x1b" not in html
    assert "&lt;script&gt;alert(1)" in html
    assert "IDX001" in html
    assert "http" not in html
    section = api.judge("apart.safetensors")._repr_html_()
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
        api.refit("tiny", quantize="w4a16")
    with pytest.raises(CkptcheckError, match="--ignore has no effect where nothing is quantized"):
        api.refit("tiny", ignore=["lm_head"])
