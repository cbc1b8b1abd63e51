"""The settings of verbs: in ckptcheck.toml for all verbs or for one, by --set for a run, by an argument in Python."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

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
