"""The tables of defaults are whole, and a job gets those of the version that its files name."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from ckptcheck.errors import CkptcheckError
from ckptcheck.jobs.dated_defaults import DatedDefaults, FrameworkVersion, Row, Table, load_table
from ckptcheck.jobs.fields import FIELDS
from ckptcheck.jobs.framework import coerce
from ckptcheck.jobs.framework_version import search_version
from ckptcheck.jobs.open_job import list_frameworks, open_job
from tests.paths import ROOT

NAMES = sorted(file.parent.name for file in (ROOT / "ckptcheck/frameworks").glob("*/defaults.toml"))


def table_of(name: str) -> Table:
    table = load_table(name)
    assert table is not None
    return table


@pytest.mark.parametrize("name", NAMES)
def test_every_row_is_of_its_field(name: str) -> None:
    assert name.replace("_", "-") in list_frameworks() or name == "miles"
    for row in table_of(name).default:
        kind = FIELDS[row.field][0]
        assert coerce(row.value, kind) == row.value, row
        assert isinstance(row.value, bool) == (kind == "flag"), row


@pytest.mark.parametrize("name", NAMES)
def test_the_rows_of_a_field_follow_one_another(name: str) -> None:
    """A default ends where the next one begins, and only one row is the newest."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    table = table_of(name)
    for row in table.default:
        # A key that was removed has a row of its own, which dates a job that writes it.
        if row.until is None or any(row.until == other.since for other in table.default):
            groups.setdefault((row.field, row.backend, row.entry), []).append(row)
    for rows in groups.values():
        assert rows[0].since is None or len(rows) == 1, rows
        assert rows[-1].until is None, rows
        assert all(old.until == new.since and old.value != new.value for old, new in pairwise(rows)), rows


def test_versions_choose_the_row() -> None:
    def said(text: str, field: str = "rollout.logprobs", script: str = "") -> object:
        default = DatedDefaults(table_of("verl"), FrameworkVersion(text), script).find(field)
        assert default is not None
        return default.reason or (default.value, default.owner)

    old, new = (False, "verl before 0.9.0"), (True, "verl since 0.9.0")
    assert [said(text) for text in ("0.8.0", "0.7.1.post1", "2026-06-04", "0.8.0.dev")] == [old] * 4
    assert [said(text) for text in ("0.9.0", "0.9.1", "1.0", "2026-06-05", "0.10.0.dev", "")] == [new] * 6
    assert said("0.9.0.dev") == "verl 0.9.0.dev is a version between two of its defaults: false or true"
    assert said("f00ba47") == new, "a commit that the table does not name is taken for the newest"
    assert said("0.7.0", "algorithm.bypass", "verl.experimental.one_step_off_policy.main_ppo") == (
        True,
        "verl since 0.7.0",
    )
    assert said("0.9.0", "algorithm.bypass", "verl.trainer.main_ppo") == (False, "verl")


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        ("verl", "torch==2.8\nverl[vllm]==0.7.1\n", "0.7.1"),
        ("verl", "pip install 'verl @ git+https://github.com/volcengine/verl.git@v0.6.1'", "0.6.1"),
        ("verl", "git clone -b v0.7.0 https://github.com/verl-project/verl", "0.7.0"),
        ("verl", "git clone https://github.com/verl-project/verl\ncd verl\ngit checkout 614ffc04c\n", "614ffc04c"),
        ("verl", "FROM verlai/verl:app-verl0.5-transformers4.55.4-vllm0.10.0-mcore0.13.0", "0.5"),
        ("verl", "FROM verlai/verl:vllm017.latest", None),
        ("verl", "# runs with verl==0.7.0\ntrain  # pip install verl==0.6.1\n", None),
        ("verl", '"""Tried with verl==0.7.0."""\nmain()\n', None),
        ("verl", "#SBATCH --container-image=verlai/verl:app-verl0.6-x\n", "0.6"),
        ("verl", "x: 1  # verl==0.7.0\n\npip install 'verl@git+https://x/verl-project/verl@v0.8.0#egg=verl'", "0.8.0"),
        ("trl", '# /// script\n# dependencies = ["trl==1.2.0"]\n# ///\nmain()\n', "1.2.0"),
        ("verl", "FROM somebody/overlay==1.0\nnot-verl==0.1", None),
        ("verl", '[[package]]\nname = "verl"\nversion = "0.8.0"\n', "0.8.0"),
        ("verl", 'name = "verl"\nsource = { editable = "." }\ndeps = [{ name = "ray", version = "2.1" }]', None),
        ("verl", 'name = "verl"\nauthors = [{ name = "x" }]\nversion = "0.8.0"', "0.8.0"),
        ("slime", "docker pull slimerl/slime:nightly-dev-20260601a", "2026-06-01"),
        ("slime", "docker pull slimerl/slime:v0.2.4", "0.2.4"),
        ("slime", "docker pull slimerl/slime:latest", None),
        ("nemo-rl", "CONTAINER=nvcr.io/nvidia/nemo-rl:v0.5.0", "0.5.0"),
        ("prime-rl", '[project]\nname = "prime-rl"\nversion = "0.7.0"\n', "0.7.0"),
        ("pipelinerl", "git clone https://github.com/ServiceNow/PipelineRL.git && git checkout d2b6bd9", "d2b6bd9"),
    ],
)
def test_a_pin_names_the_version(name: str, text: str, version: str | None) -> None:
    found = search_version(table_of(name), text, "file")
    assert (found and found.text) == version


@pytest.mark.parametrize(
    ("files", "version", "place"),
    [
        ({"requirements-gpu.txt": "ray\nverl==0.8.0\n"}, "0.8.0", "requirements-gpu.txt:2"),
        ({"Dockerfile": "FROM verlai/verl:app-verl0.6-x\n"}, "0.6", "Dockerfile:1"),
        ({"verl/version/version": "0.8.0.dev\n"}, "0.8.0.dev", "verl/version/version:1"),
        ({"setup.py": 'setup(name="other", version="0.8.0")\n'}, "", ""),
        ({"job.sh": "pip install verl==0.7.0\n"}, "", ""),
        ({"../pyproject.toml": '[project]\ndependencies = ["verl~=0.8.1"]\n'}, "0.8.1", "pyproject.toml:2"),
        (
            {"../pyproject.toml": '[project]\nname = "verl"\nlicense = "x"\nversion = "0.8.2"\n'},
            "0.8.2",
            "pyproject.toml:2",
        ),
        ({"../pyproject.toml": '[a]\nname = "verl"\n[b]\nversion = "0.8.2"\n'}, "", ""),
        ({}, "", ""),
    ],
)
def test_files_around_a_job_name_the_version(tmp_path: Path, files: dict[str, str], version: str, place: str) -> None:
    job = tmp_path / "examples" / "job.yaml"
    for name, text in {"examples/job.yaml": "actor_rollout_ref:\n  rollout: {name: vllm}\n", **files}.items():
        folder = tmp_path if "/" in name and ".." not in name else tmp_path / "examples"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    defaults = open_job([str(job)]).defaults
    assert defaults is not None
    assert (defaults.version.text, defaults.version.place) == (version, place)


def test_the_source_of_a_framework_around_a_job_names_its_version(tmp_path: Path) -> None:
    (tmp_path / "swift").mkdir()
    (tmp_path / "VERSION").write_text("7.7.7\n")  # of another project
    (tmp_path / "swift/version.py").write_text("# a\n__version__ = '4.1.0.dev0'\n")
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["vllm==0.17.1"]\n')
    script = tmp_path / "run.sh"
    script.write_text("swift rlhf --rlhf_type grpo --model org/model --use_vllm true\n")
    job = open_job([str(script)])
    assert job.defaults is not None
    assert (job.defaults.version.text, job.defaults.version.place) == ("4.1.0.dev0", "swift/version.py:2")
    assert job.engine_version == "0.17.1"
    script.write_text("trl grpo --model_name_or_path org/model --use_vllm true\n")
    assert (job := open_job([str(script)])).defaults is not None
    assert not job.defaults.version.is_known
    (tmp_path / "trl").mkdir()
    assert (job := open_job([str(script)])).defaults is not None
    assert (job.defaults.version.text, job.defaults.version.place) == ("7.7.7", "VERSION:1")


def test_the_script_itself_counts_before_the_files_around_it(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("verl==0.9.0\n", encoding="utf-8")
    script = tmp_path / "run.sh"
    script.write_text("pip install verl==0.7.0\npython -m verl.trainer.main_ppo a.b=1\n", encoding="utf-8")
    job = open_job([str(script)])
    assert job["rollout.logprobs"].place == "default of verl before 0.9.0"
    assert open_job([str(script)], framework_version="0.9.0")["rollout.logprobs"].value is True


def test_a_key_that_was_removed_dates_the_job(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("finetune: {rl: {}}\nllm: {}\nvllm_config: {use_v1: false}\n", encoding="utf-8")
    defaults = open_job([str(job)]).defaults
    assert defaults is not None
    assert defaults.version == FrameworkVersion("2026-04-22", "job.yaml:3 has vllm_config.use_v1", is_latest=True)


def test_what_is_no_version_is_refused(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("actor_rollout_ref: {}\n", encoding="utf-8")
    with pytest.raises(CkptcheckError, match="newest is no version of verl"):
        open_job([str(job)], framework_version="newest")


def test_hostile_files_around_a_job_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("actor_rollout_ref: {}\n", encoding="utf-8")
    (tmp_path / "requirements.txt").mkdir()
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\xfe\0verl==")
    (tmp_path / "uv.lock").write_text("git clone " * 20_000 + "verl-project/verl\n" * 2000, encoding="utf-8")
    defaults = open_job([str(tmp_path / "job.yaml")]).defaults
    assert defaults is not None
    assert not defaults.version.is_known
