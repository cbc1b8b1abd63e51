"""The tables of keys are those of the newest packages: a key or a default that moved fails here.

The wheels are downloaded without their dependencies and read as text; nothing of them runs. Where something moved:
``python fixtures/learn_framework_keys.py NAME path/to/.git --until '' --package v1.17.0=path/to/unpacked/wheel``.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import learn_framework_keys as learner
import pytest

from ckptcheck.frameworks.areal import preflight as areal
from ckptcheck.frameworks.ms_swift import preflight as ms_swift
from ckptcheck.frameworks.openrlhf import preflight as openrlhf
from ckptcheck.frameworks.skyrl import preflight as skyrl
from ckptcheck.frameworks.trl import preflight as trl
from ckptcheck.jobs.framework import FieldSource
from ckptcheck.jobs.key_table import KeyTable, load_key_table
from tests.factories.wheels import download_wheel

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("package index")]

TRL = {**trl.PATHS, **trl.COLOCATED}
SWIFT = {**ms_swift.PATHS, **ms_swift.COLOCATED}
READ: dict[str, tuple[str, Mapping[str, FieldSource]]] = {
    "trl_grpo": ("trl", TRL),
    "trl_rloo": ("trl", TRL),
    "trl_async_grpo": ("trl", trl.PATHS),
    "openrlhf": ("openrlhf", openrlhf.PATHS),
    "swift": ("ms-swift", SWIFT),
    "swift_megatron": ("ms-swift", {**SWIFT, **ms_swift.MEGATRON}),
}
"""Table → (its package, the fields that are read by it)."""
SWITCHES = (
    "vllm_mode", "use_vllm", "vllm_importance_sampling_correction", "vllm_importance_sampling_mode", "bf16", "max_staleness",
    "algo.advantage.is_correction_level", "train.async_queue_size", "rollout_importance_sampling_mode", "vllm_enable_lora",
    "async_generate", "router_replay_mode",
)  # fmt: skip
"""Keys that the readers ask for besides."""


NESTED: dict[str, Mapping[str, FieldSource]] = {
    "skyrl": {**skyrl.PATHS, **skyrl.BY_MEGATRON},
    "areal": {**areal.PATHS, **areal.BY_ENGINE["sglang"], **areal.BY_ENGINE["vllm"]},
}
"""Table and package → the fields that are read by it, for configurations with sections. The tables go beyond the packages."""


def learn_newest(name: str, package: Path) -> dict[str, dict[str, Any]]:
    """Return section → key → default, learned from an unpacked package."""
    sections: dict[str, dict[str, Any]] = learner._Revision(package, str(package), learner._FRAMEWORKS[name]).sections
    return sections


def find_moved(name: str, sections: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return what is not as the table says: key → the default in the table and in the package."""
    table = load_key_table(learner._choose_file(name))
    moved = {}
    for path in (*(path for source in READ[name][1].values() for path in source.paths), *SWITCHES):
        section, _, key = path.rpartition(".")
        ours = table.find(path, table.newest)
        if ours is not None and ours.is_open:
            continue
        has = key in sections.get(section or "Flags", {})
        theirs = sections[section or "Flags"][key] if has else None
        theirs = None if isinstance(theirs, dict) else theirs
        if has != (ours is not None) or (ours is not None and ours.default != theirs):
            moved[path] = (
                f"{ours.default if ours else 'no such key'}, and the package has {theirs if has else 'no such key'}"
            )
    return moved


@pytest.mark.parametrize("name", READ)
def test_no_key_has_moved(name: str, tmp_path: Path) -> None:
    wheel: zipfile.ZipFile = download_wheel(READ[name][0], tmp_path)
    for member in wheel.namelist():
        if member.endswith(".py"):
            # Some wheels keep their modules below package.data/purelib.
            file = tmp_path / "package" / (member.partition(".data/purelib/")[2] or member)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(wheel.read(member))
    sections = learn_newest(name, tmp_path / "package")
    assert find_moved(name, sections) == {}
    sections = {section: dict.fromkeys(keys, 0.123) for section, keys in sections.items()}
    assert find_moved(name, sections), "a default that moved is found"


@pytest.mark.parametrize("name", NESTED)
def test_no_nested_key_has_moved(name: str, tmp_path: Path) -> None:
    if name == "areal" and sys.version_info < (3, 12):
        pytest.skip("AReaL's sources have the syntax of Python 3.12")
    wheel = download_wheel(name, tmp_path)
    for member in wheel.namelist():
        if member.endswith(".py"):
            file = tmp_path / "package" / member
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(wheel.read(member))
    sections = learn_newest(name, tmp_path / "package")
    version = Path(str(wheel.filename)).name.split("-")[1]
    table = load_key_table(learner._choose_file(name))
    release = table.find_release(version)
    spans = {section: {key: [(0, 0, entry)] for key, entry in keys.items()} for section, keys in sections.items()}
    package = KeyTable(table.repository, ((version, "", ""),), (table.roots[release],), spans)
    assert table.version(release) == tuple(int(part) for part in version.split(".")[:3]), (
        "the newest release is in the table"
    )
    paths = {path for source in NESTED[name].values() for path in source.paths}
    moved = {path for path in paths if package.find(path, 0) != table.find(path, release)}
    assert moved == set()
    assert sum(package.find(path, 0) is not None for path in paths) > len(paths) // 2, "the package is read"
