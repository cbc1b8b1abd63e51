"""The newest rows of the tables are the defaults of the newest package that can be installed: a default that moved fails here.

verl is the one of these frameworks on the package index. Its wheel is downloaded without its dependencies and read as a zip file;
nothing of it runs. Where a default moved: give the old row an ``until`` and add one with ``since``, with commit and release.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ckptcheck.frameworks.verl import preflight as verl
from ckptcheck.jobs.dated_defaults import DatedDefaults, FrameworkVersion, Row, load_table
from ckptcheck.jobs.fields import FIELDS
from ckptcheck.jobs.framework import FieldSource, coerce
from tests.factories.wheels import download_wheel

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("package index")]

CONFIGURATIONS = {
    "": "_generated_ppo_trainer.yaml",
    "fsdp": "_generated_ppo_trainer.yaml",
    "megatron": "_generated_ppo_megatron_trainer.yaml",
}
"""Training backend → verl's own reference configuration with it, generated from its defaults."""
SELECTION = re.compile(r"\$\{oc\.select:[^,${}]+,([^${}]*)\}")
"""A reference with a value for where it refers to nothing."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Download the newest wheel of verl."""
    return download_wheel("verl", tmp_path_factory.mktemp("wheel"))


def read_configuration(wheel: zipfile.ZipFile, name: str) -> dict[str, Any]:
    return dict(yaml.safe_load(wheel.read(f"verl/trainer/config/{name}")))


def value_at(configuration: Mapping[str, Any], key: str) -> tuple[bool, object]:
    """Return (whether a configuration has a key, its value)."""
    value: Any = configuration
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return False, None
        value = value[part]
    while isinstance(value, str) and (match := SELECTION.fullmatch(value)):
        value = yaml.safe_load(match[1])
    return True, value


def source_of(row: Row) -> FieldSource:
    tables = (verl.SOURCES, verl.MEGATRON if row.backend == "megatron" else verl.FSDP, verl.CRITIC_MEGATRON)
    return next(table[row.field] for table in tables if row.field in table)


def find_moved(wheel: zipfile.ZipFile, *, is_newest: bool = True) -> dict[str, str]:
    """Return what is not as the table says: the framework's key → the row's value and the package's.

    is_newest: whether the package has to have every key; older ones do not have all.
    """
    table = load_table("verl")
    assert table is not None
    version = Path(str(wheel.filename)).name.split("-")[1]
    defaults = DatedDefaults(table, FrameworkVersion(version))
    moved: dict[str, str] = {}
    for row in table.default:
        if not row.key or row.until is not None or row.entry or row.of or "/trainer/config/" not in row.source:
            continue
        backend = "megatron" if ".megatron." in row.key else row.backend
        has, value = value_at(read_configuration(wheel, CONFIGURATIONS[backend]), row.key)
        ours = defaults.find(row.field, backend)
        assert ours is not None
        source = source_of(row)
        read = source.read(value) if source.read is not None and value is not None else value
        theirs = coerce(read, FIELDS[row.field][0]) if value is not None else None
        unset = value is None and ours.value in (False, "none")
        if not has and is_newest:
            moved[row.key] = f"{ours.value}, and verl {version} has no such key"
        elif has and not unset and theirs != ours.value:
            moved[row.key] = f"{ours.value}, and verl {version} has {value}"
    return moved


def test_no_default_of_verl_has_moved(wheel: zipfile.ZipFile) -> None:
    assert find_moved(wheel) == {}


@pytest.mark.parametrize("release", ["0.6.0", "0.8.0"])
def test_the_older_rows_are_those_of_an_older_release(release: str, tmp_path: Path) -> None:
    assert find_moved(download_wheel(f"verl=={release}", tmp_path), is_newest=False) == {}


def test_a_default_that_moved_is_found(wheel: zipfile.ZipFile, monkeypatch: pytest.MonkeyPatch) -> None:
    read = read_configuration

    def changed(wheel: zipfile.ZipFile, name: str) -> dict[str, Any]:
        configuration = read(wheel, name)
        configuration["actor_rollout_ref"]["rollout"]["calculate_log_probs"] = False
        del configuration["actor_rollout_ref"]["rollout"]["top_k"]
        return configuration

    monkeypatch.setitem(globals(), "read_configuration", changed)
    assert [key.rpartition(".")[2] for key in find_moved(wheel)] == ["top_k", "calculate_log_probs"]
