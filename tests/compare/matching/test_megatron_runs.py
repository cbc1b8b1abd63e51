"""Checkpoints by the real megatron-core against the Hugging Face ones they were made from, and what wrong exports look like."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from safetensors.numpy import load_file, save_file

from ckptcheck import identity, manifest, verify
from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.open_side import open_side
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.runtime.environments.recipe import find_recipe
from ckptcheck.live.runtime.environments.store import find_environment
from tests.factories.comparison_cases import read_header
from tests.factories.identities import list_differences
from tests.paths import ROOT

pytestmark = pytest.mark.engine
RULES = [rule for rule in rule_loader.load_rules() if rule.on == "comparison"]
SAME = (
    "dense", "dense-tp2-pp2", "dense-vpp", "dense-tied-pp2", "dense-per-layer", "dense-bf16", "dense-optimizer",
    "dense-legacy-tp2-pp2", "dense-legacy-vpp", "dense-tied-legacy-pp2", "moe-tp2-pp2-ep2", "moe-per-layer",
    "moe-legacy-ep2", "plain-dcp",
)  # fmt: skip
CRITICS = ("critic-pp2", "critic-vpp", "critic-legacy-pp2")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs, written once for all workers."""
    environment = find_environment(find_recipe("megatron"))
    if environment.state not in ("ready", "stale"):
        pytest.skip("the megatron environment is not built (make engines)")
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if base.name.startswith("popen") else base) / "megatron-diff"
    with FileLock(f"{folder}.lock"):
        if not (folder / "done").exists():
            command = [str(environment.python), str(ROOT / "fixtures/write_megatron.py"), str(folder), *SAME, *CRITICS]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            assert result.returncode == 0, result.stderr[-3000:]
            (folder / "done").touch()
    return folder


def diff(first: Path, second: Path, *, critic: bool = False) -> tuple[Report, Comparison]:
    seen = Comparison(open_side(str(first)), open_side(str(second)), critic=critic)
    return run_rules(seen, RULES), seen


@pytest.mark.parametrize("name", SAME)
def test_a_run_is_the_model_it_was_made_from(name: str, runs: Path) -> None:
    for pair in ((name, f"{name}-hf"), (f"{name}-hf", name)):
        report, seen = diff(runs / pair[0], runs / pair[1])
        assert report.verdict == "clean", [finding.message for finding in report.findings]
        plain = read_header(runs / f"{name}-hf/model.safetensors")
        counted = {pair.name for pair in seen.match_result.pairs}
        assert counted - {"lm_head.weight"} == plain.keys() - {"lm_head.weight"}  # every tensor, and no other


@pytest.mark.parametrize(
    ("first", "second"), [("dense-tp2-pp2", "dense-legacy-tp2-pp2"), ("dense-vpp", "dense-legacy-vpp")]
)
def test_two_runs_of_other_layouts_are_compared_without_a_family(first: str, second: str, runs: Path) -> None:
    report, seen = diff(runs / first, runs / second)
    assert seen.match_result.missing == seen.match_result.extra == {}
    assert report.verdict == "clean"


@pytest.mark.parametrize("name", CRITICS)
def test_a_critic_lacks_the_head_and_nothing_else(name: str, runs: Path) -> None:
    report, _ = diff(runs / name, runs / f"{name}-hf")
    assert [finding.code for finding in report.findings] == ["CMP001", "CMP001"]
    report, seen = diff(runs / name, runs / f"{name}-hf", critic=True)
    assert report.verdict == "clean"
    assert "heads of their own: lm_head.weight, value_head.weight" in seen.subject
    assert "only the head is new in the critic: value_head.weight" in seen.subject


def swap_layers(tensors: dict[str, Any]) -> None:
    """A pipeline offset that was left out: the second stage numbers its layers from 0 again."""
    for name in list(tensors):
        if name.startswith(("model.layers.2.", "model.layers.3.")):
            tensors[name] = tensors[name.replace("layers.2.", "layers.0.").replace("layers.3.", "layers.1.")]


def leave_interleaved(tensors: dict[str, Any]) -> None:
    """Queries, keys and values cut from the interleaved tensor as if it were [Q; K; V]."""
    for layer in range(4):
        at = f"model.layers.{layer}.self_attn"
        q, k, v = (tensors[f"{at}.{part}_proj.weight"] for part in "qkv")
        groups = 2
        width = k.shape[0] // groups
        each = q.shape[0] // width // groups
        parts = [x.reshape(groups, -1, width, x.shape[1]) for x in (q, k, v)]
        mixed = np.concatenate(parts, axis=1).reshape(-1, q.shape[1])
        assert each >= 1
        cut = np.split(mixed, [q.shape[0], q.shape[0] + k.shape[0]])
        for part, value in zip("qkv", cut, strict=True):
            tensors[f"{at}.{part}_proj.weight"] = np.ascontiguousarray(value)


def exchange_halves(tensors: dict[str, Any]) -> None:
    """Gate and up exchanged everywhere."""
    for name in [name for name in tensors if "gate_proj" in name]:
        up = name.replace("gate_proj", "up_proj")
        tensors[name], tensors[up] = tensors[up], tensors[name]


def drop_a_layer(tensors: dict[str, Any]) -> None:
    """30 layers on 4 stages: the last are not exported."""
    for name in [name for name in tensors if name.startswith("model.layers.3.")]:
        del tensors[name]


WRONG: list[tuple[str, Callable[[dict[str, Any]], None], str, str]] = [
    ("dense-tp2-pp2", swap_layers, "CMP005", "layers 2-3 equal layers 0-1"),
    ("dense-tp2-pp2", leave_interleaved, "CMP005", "interleav"),
    ("dense-tp2-pp2", exchange_halves, "CMP005", "gate and up are swapped"),
    ("dense-tp2-pp2", drop_a_layer, "CMP001", "model.layers.3"),
]


@pytest.mark.parametrize(("name", "wrong", "code", "said"), WRONG, ids=lambda value: getattr(value, "__name__", None))
def test_a_wrong_export_is_named(
    name: str, wrong: Callable[[dict[str, Any]], None], code: str, said: str, runs: Path, tmp_path: Path
) -> None:
    export = Path(shutil.copytree(runs / f"{name}-hf", tmp_path / "export"))
    tensors = load_file(export / "model.safetensors")
    wrong(tensors)
    save_file(tensors, export / "model.safetensors", {"format": "pt"})
    report, _ = diff(runs / name, export)
    assert {finding.code for finding in report.findings} == {code}
    assert any(said in finding.message for finding in report.findings), [finding.message for finding in report.findings]


def test_a_chunk_that_is_nowhere_is_not_equal(runs: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(runs / "dense-tp2-pp2", tmp_path / "run"))
    shard = max(damaged.rglob("*.distcp"), key=lambda path: path.stat().st_size)
    shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
    report, _ = diff(damaged, runs / "dense-tp2-pp2-hf")
    assert report.exit_code("error") == 2


@pytest.mark.parametrize("name", [name for name in SAME if name != "dense-bf16"])
def test_a_run_and_its_export_are_one_set_of_weights(name: str, runs: Path) -> None:
    """On every grid, and in every format that megatron-core writes."""
    ours, theirs = identity(runs / name, like=runs / f"{name}-hf"), identity(runs / f"{name}-hf")
    assert list_differences(ours, theirs) == []
    assert ours.identity == theirs.identity


def test_a_run_in_another_dtype_is_another_set_of_weights(runs: Path) -> None:
    ours, theirs = identity(runs / "dense-bf16", like=runs / "dense-bf16-hf"), identity(runs / "dense-bf16-hf")
    assert ours.tensors.keys() == theirs.tensors.keys()
    other = set(list_differences(ours, theirs))
    assert other == {name for name in ours.tensors if ours.tensors[name].dtype != theirs.tensors[name].dtype} != set()
    assert ours.identity != theirs.identity


@pytest.mark.parametrize("name", ["dense-tp2-pp2", "dense-optimizer", "dense-legacy-tp2-pp2", "moe-tp2-pp2-ep2"])
def test_an_export_is_verified_against_the_manifest_of_its_run(name: str, runs: Path, tmp_path: Path) -> None:
    run, export = runs / name, runs / f"{name}-hf"
    taken = manifest(run, like=export)
    assert taken.identity == identity(export).identity
    (found,) = verify(export, taken).findings
    assert (found.code, found.severity) == ("MAN005", "info")
    assert ("are gone" in found.message) is (len(taken.tensors) > sum(map(bool, map(taken.list_parts, taken.tensors))))
    broken = Path(shutil.copytree(export, tmp_path / "export"))
    tensors = load_file(export / "model.safetensors")
    exchange_halves(tensors)
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    (found,) = verify(broken, taken).findings
    assert (found.code, set(found.names)) == (
        "MAN005",
        {each for each in tensors if "gate_proj" in each or "up_proj" in each},
    )
    # and the run against the manifest of its export
    assert [each.code for each in verify(run, manifest(export), like=export).findings] == ["MAN005"]
