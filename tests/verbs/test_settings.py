"""The settings of verbs: in ckptcheck.toml for all verbs or for one, by --set for a run, by an argument in Python."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import ckptcheck
from ckptcheck.cli.app import build_app
from ckptcheck.cli.verb_command import load_verb
from ckptcheck.errors import CkptcheckError
from ckptcheck.verbs.verb import Verb
from tests.factories.checkpoint_cases import CHECKPOINTS

ROWS = "Rows near zero (every |element| < {}) and identical (std < 1e-08)"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(CHECKPOINTS / "tiny-llama", tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(here: Path, text: str) -> None:
    (here / "ckptcheck.toml").write_text(text, encoding="utf-8")


def scan(*words: str) -> str:
    result = CliRunner().invoke(
        build_app("scan"), ["scan", "model", "--format", "json", *words], catch_exceptions=False
    )
    (section,) = json.loads(result.stdout)["sections"]
    return str(section["title"])


def test_the_nearest_word_counts(here: Path) -> None:
    assert scan() == ROWS.format("1e-10")
    write(here, "[verbs]\nnear-zero-threshold = 2\n")
    assert scan() == ROWS.format("2")
    write(here, "[verbs]\nnear-zero-threshold = 2\nsteps = 3\n[verbs.scan]\nnear-zero-threshold = 3\n")
    assert scan() == ROWS.format("3")
    assert scan("--set", "near-zero-threshold=4") == ROWS.format("4")
    assert scan("--near-zero-threshold", "4") == scan("--near-zero-threshold=4") == ROWS.format("4")
    assert ckptcheck.scan("model").sections[0].title == ROWS.format("3")
    assert ckptcheck.scan("model", near_zero_threshold=5).sections[0].title == ROWS.format("5")


def test_a_setting_of_the_project_excludes_nothing(here: Path) -> None:
    write(here, "[verbs.scan]\nno-mmap = true\n")
    assert ckptcheck.scan("model", headers_only=True).verdict == "clean"


def test_settings_in_a_target_do_not_count(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here / "model")
    write(here / "model", "[verbs.scan]\nnear-zero-threshold = 2\n")
    assert ckptcheck.scan(".").sections[0].title == ROWS.format("1e-10")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[verbs.scn]\nno-mmap = true\n", "verbs.scn is no verb; did you mean scan?"),
        ("[verbs.scan]\nno-map = true\n", "verbs.scan has no setting no-map; did you mean no-mmap?"),
        ("[verbs.scan]\nheaders-only = true\n", "verbs.scan has no setting headers-only"),
        ("[verbs.scan]\nno-mmap = 'yes'\n", "scan takes True or False as no_mmap, not 'yes'"),
        ("[verbs]\nnear-zero-threshold = -1\n", "--set near-zero-threshold takes finite numbers from 0 on, not -1"),
        ("verbs = 3\n", "verbs is not a table"),
    ],
)
def test_what_is_no_setting_is_a_sentence(here: Path, text: str, sentence: str) -> None:
    write(here, text)
    with pytest.raises(CkptcheckError, match=sentence):
        ckptcheck.scan("model")


def test_words_become_what_the_setting_takes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: dict[str, object] = {}
    refit = load_verb("refit")
    monkeypatch.setattr(refit, "function", lambda *_, **arguments: taken.update(arguments))
    assert isinstance(refit, Verb)
    words = ["perturb=0.02", "sleep-level=2", "keep=on", "clear-cache=false", "engine-gpus=0, 1", "trainer-gpus="]
    command = ["refit", "model", *(part for word in words for part in ("--set", word))]
    CliRunner().invoke(build_app("refit"), command, catch_exceptions=False)
    given = {
        name: taken[name] for name in ("perturb", "sleep_level", "keep", "clear_cache", "engine_gpus", "trainer_gpus")
    }
    assert given == {
        "perturb": 0.02, "sleep_level": 2, "keep": True, "clear_cache": False, "engine_gpus": "0,1", "trainer_gpus": "",
    }  # fmt: skip


NAMES = (
    "weights.safetensors", "diffusion_pytorch_model.safetensors", "model.gguf", "model.pt", "mp_rank_00/model.pt",
    "adapter_model.safetensors", "pytorch_model.bin", "__0_0.distcp",
)  # fmt: skip
"""Names of weights."""
FORMS = ("path", "folder", "pattern", "address", "chain")
"""Forms of a target."""


@pytest.mark.parametrize(
    ("weights", "named"), [*((name, "file") for name in NAMES), *(("weights.safetensors", form) for form in FORMS)]
)
def test_settings_beside_a_target_hide_nothing(
    weights: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the weights are called, and however the target is named."""
    shutil.copytree(CHECKPOINTS / "tiny-llama", tmp_path / "delta")
    file = tmp_path / "download" / weights
    file.parent.mkdir(parents=True)
    shutil.copyfile(CHECKPOINTS / "tiny-llama/model.safetensors", file)
    write(tmp_path / "download", 'rules = ["evil"]\nfail-on = "never"\n[verbs.scan]\nno-map = 7\n')
    (tmp_path / "download/evil").mkdir()
    (tmp_path / "download/evil/evi001_x.py").write_text("raise SystemExit('owned')", encoding="utf-8")
    monkeypatch.chdir(file.parent)
    target = {
        "path": str(file), "folder": ".", "pattern": f"{file.stem}*", "address": file.as_uri(), "chain": f"{file.name}+../delta",
    }.get(named, file.name)  # fmt: skip
    said, reports = "", ckptcheck.Reports(())
    try:
        reports = ckptcheck.scan([target], headers_only=True)
    except CkptcheckError as error:  # what the target lacks
        said = error.message
    assert "ckptcheck.toml" not in said
    assert all(report.fail_on == "error" for report in reports)


def test_code_in_settings_runs_only_where_the_user_names_the_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository that somebody cloned has settings above its checkpoints, as one's own project has."""
    file = here / "ckptcheck.toml"
    (here / "mine").mkdir()
    (here / "mine/bob001_x.py").write_text("raise SystemExit('ran')", encoding="utf-8")
    write(here, 'rules = ["mine"]\n[verbs]\nengine-python = "/mine/python"\n')
    with pytest.raises(
        CkptcheckError, match="rules names folders of rules, which are code, and a settings file runs"
    ) as refusal:
        ckptcheck.scan("model")
    assert refusal.value.hint == f"--config {file} names it"
    assert ckptcheck.identity("model").tensors, "what runs no rules and no engine is none the worse"
    with pytest.raises(CkptcheckError, match="engine-python names a program that would run"):
        ckptcheck.refit("model")
    with pytest.raises(SystemExit, match="ran"):
        ckptcheck.scan("model", config=file)
    taken: dict[str, object] = {}
    refit = load_verb("refit")
    monkeypatch.setattr(refit, "function", lambda *_, **arguments: taken.update(arguments))
    CliRunner().invoke(build_app("refit"), ["refit", "model", "--config", str(file)], catch_exceptions=False)
    assert taken["engine_python"] == "/mine/python"
    CliRunner().invoke(
        build_app("refit"), ["refit", "model", "--set", "engine-python=/other/python"], catch_exceptions=False
    )
    assert taken["engine_python"] == "/other/python"
    for command in (["rules"], ["rule", "IDX001"], ["doctor"]):
        CliRunner().invoke(build_app(command[0]), command, catch_exceptions=False)


@pytest.mark.parametrize(
    ("text", "command", "is_said"),
    [
        ("[verbs.preflight]\nengine-version = '0.7.1'\n", "preflight", True),
        ("[verbs]\nengine-version = '0.7.1'\n", "preflight", True),
        ("verbs = 3\n", "preflight", True),
        ("fail-on = 'never'\n[verbs.scan]\nno-mmap = true\n", "preflight", False),
        ("fail-on = 'never'\n", "scan", True),
    ],
)
def test_a_file_that_does_not_count_is_named(
    text: str,
    command: str,
    is_said: bool,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(here / "model")
    (here / "model/job.yaml").write_text("actor_rollout_ref: {rollout: {name: vllm}}\n", encoding="utf-8")
    write(here, text)
    target = {"preflight": "job.yaml", "scan": "."}[command]
    result = CliRunner().invoke(build_app(command), [command, target], catch_exceptions=False)
    file = here / "ckptcheck.toml"
    line = f"{file} is not read: it may have come with the target; --config {file} uses it"
    assert (line in result.output + capfd.readouterr().err) == is_said
