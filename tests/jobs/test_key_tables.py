"""The tables of keys: what a release has, which release a job is read by, and that readers name keys that exist."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ckptcheck.frameworks.areal import preflight as areal
from ckptcheck.frameworks.open_instruct import preflight as open_instruct
from ckptcheck.frameworks.skyrl import preflight as skyrl
from ckptcheck.jobs.document import Document, Leaf
from ckptcheck.jobs.framework import FieldSource
from ckptcheck.jobs.key_names import find_unknown_part, list_unknown_names, load_key_names
from ckptcheck.jobs.key_table import load_key_table
from ckptcheck.jobs.open_job import list_frameworks, open_job
from tests.paths import ROOT

READERS: dict[str, list[Mapping[str, FieldSource]]] = {
    "skyrl": [skyrl.PATHS, skyrl.BY_MEGATRON],
    "areal": [areal.PATHS, areal.BY_MEGATRON, *areal.BY_ENGINE.values()],
    "open_instruct": [open_instruct.PATHS],
}
NEVER_A_KEY = {"sglang.quantization", "vllm.quantization"}
"""Options of the engines that AReaL's own classes do not have, and that a patched one may."""


@pytest.mark.parametrize("name", READERS)
def test_readers_name_keys_that_a_release_has(name: str) -> None:
    table = load_key_table(ROOT / "ckptcheck/frameworks" / name / "keys.json")
    paths = {path for sources in READERS[name] for source in sources.values() for path in source.paths} - NEVER_A_KEY
    assert {path for path in paths if not table.list_releases(path)} == set()


@pytest.mark.parametrize("name", ["verl", "nemo-rl", "pipelinerl", "roll", "prime-rl"])
def test_no_key_of_a_reader_is_a_slip(name: str) -> None:
    table, reader = load_key_names(name), list_frameworks()[name]
    assert table is not None
    paths = {path for source in reader.sources.values() for path in source.paths}
    document = Document({path: Leaf(1, path) for path in paths})
    assert [found.near for found in list_unknown_names(document, table, "why") if found.near] == []
    assert sum(find_unknown_part(path, table.names) is None for path in paths) > len(paths) * 0.75


def test_a_default_is_that_of_the_release() -> None:
    table = load_key_table(ROOT / "ckptcheck/frameworks" / "open_instruct" / "keys.json")
    newest = table.find("temperature", table.newest)
    oldest = table.find("temperature", 0)
    assert newest is not None
    assert oldest is not None
    assert (oldest.default, newest.default) == (0.7, 1.0)
    assert table.find("inflight_updates", 0) is None


def test_a_section_may_hold_any_keys() -> None:
    table = load_key_table(ROOT / "ckptcheck/frameworks" / "skyrl" / "keys.json")
    found = table.find("generator.inference_engine.engine_init_kwargs.max_model_len", table.newest)
    assert found is not None
    assert found.is_open
    assert table.find("generator.inference_engine.engine_init_kwarg.max_model_len", table.newest) is None
    assert table.find("trainer.policy.model.path.more", table.newest) is None
    default = table.find("trainer.policy.model.path", table.newest)
    assert default is not None
    assert default.default == "Qwen/Qwen2.5-1.5B-Instruct"


def test_the_release_is_the_newest_that_knows_the_most_keys() -> None:
    table = load_key_table(ROOT / "ckptcheck/frameworks" / "skyrl" / "keys.json")
    old, new = "generator.backend", "generator.inference_engine.backend"
    both = "trainer.strategy"
    assert table.choose_release([both]) == table.newest
    assert table.choose_release([both, new]) == table.newest
    assert table.describe(table.choose_release([both, old])) == "skyrl_train-v0.4.0"


def test_a_key_of_another_release_is_said_to_be_one() -> None:
    table, document = load_key_table(ROOT / "ckptcheck/frameworks" / "skyrl" / "keys.json"), Document()
    for path in ("generator.backend", "generator.inference_engine.backnd", "trainer.x"):
        document.put(path, Leaf(1, path, "job.sh", 1))
    unknown = table.list_unknown_keys(document, table.newest, ("generator", "trainer"))
    assert [(key.leaf.key, key.near, key.why) for key in unknown] == [
        (
            "generator.backend",
            "",
            f"a key of skyrl_train-v0.4.0, which {table.describe(table.newest)} does not have",
        ),
        ("generator.inference_engine.backnd", "generator.inference_engine.backend", ""),
        ("trainer.x", "", ""),
    ]


FLAGS = "--model_name_or_path m --response_length 100 --max_prompt_token_length 100 --pack_length 200"


@pytest.mark.parametrize(
    ("line", "version", "temperature", "logprobs"),
    [
        ("", "", 1.0, "processed"),
        ("", "2026-08-20", 1.0, "processed"),
        ("", "2026-03-10", 0.7, "raw"),
        ("", "0.2.0", 0.7, "raw"),
        ("pip install open-instruct==0.2.0", "", 0.7, "raw"),
    ],
)
def test_the_version_is_that_of_the_job(
    tmp_path: Path, line: str, version: str, temperature: float, logprobs: str
) -> None:
    job = tmp_path / "job.sh"
    job.write_text(f"{line}\npython open_instruct/grpo_fast.py {FLAGS}\n", encoding="utf-8")
    read = open_job([str(job)], framework_version=version)
    assert (read.number("rollout.temperature"), read.text("engine.logprobs")) == (temperature, logprobs)


def test_a_version_that_lacks_the_job_s_keys_is_not_believed(tmp_path: Path) -> None:
    job = tmp_path / "job.sh"
    job.write_text(
        f"pip install open-instruct==0.2.0\npython open_instruct/grpo_fast.py {FLAGS} --use_rho_correction true\n",
        encoding="utf-8",
    )
    assert open_job([str(job)]).number("rollout.temperature") == 1.0
    # The user's own word is.
    assert open_job([str(job)], framework_version="0.2.0").number("rollout.temperature") == 0.7


@pytest.mark.parametrize(
    ("leaves", "near"),
    [
        ({"algorithm.temprature": 1}, []),
        ({"agent_template": "text"}, []),
        ({"lora_rank": 32, "actor_train.model_args.lora_rank": "${lora_rank}"}, []),
        ({"_teachers.general": "path"}, []),
        ({"custom_env.A.env_type": "sokoban", "custom_envs.A": {}}, []),
        ({"custom_env.A.env_type": "sokoban"}, ["custom_envs.A.env_type"]),
        ({"positive_loss_coef": 1.0}, ["postive_loss_coef"]),
    ],
)
def test_a_slip_is_a_letter_or_two_and_no_key_of_the_jobs_own(leaves: dict[str, object], near: list[str]) -> None:
    table = load_key_names("roll")
    assert table is not None
    document = Document({path: Leaf(value, path) for path, value in leaves.items()})
    assert [found.near for found in list_unknown_names(document, table, "why") if found.near] == near
