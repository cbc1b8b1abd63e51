"""A critic on the real megatron-core against the same one in transformers: values, loss, gradients, and what is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckptcheck.compare.matching.comparison import Comparison
from ckptcheck.compare.matching.open_side import open_side
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.runtime.process.client import WorkerClient
from tests.conftest import needs_engine
from tests.paths import DOUBLES

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]
FAR = DOUBLES / "critic.py"
LAYERS = 4
LAYOUTS: dict[str, dict[str, int]] = {"PP1": {}, "PP2": {"pp": 2}, "VPP": {"pp": 2, "chunks": 2}}
CLOSE = 1e-5
"""Of values of order 1 in float32."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """The folder, what transformers computes, and layout → what each rank of Megatron saw."""
    engine = needs_engine("megatron")
    folder = tmp_path_factory.mktemp("critic")
    with WorkerClient(engine.python, FAR, env=engine.variables) as host:
        theirs = host.call("reference", folder=str(folder), layers=LAYERS, timeout=300)
        ours = {
            name: host.call("train", folder=str(folder), layout={"layers": LAYERS, **layout}, timeout=300)
            for name, layout in LAYOUTS.items()
        }
    return folder, theirs, ours


layouts = pytest.mark.parametrize("name", LAYOUTS)


@layouts
def test_only_the_last_chunk_has_a_head(name: str, trained: Any) -> None:
    for rank in (ranks := trained[2][name]):
        for last, heads in zip(rank["last"], rank["heads"], strict=True):
            assert heads == (["value_head.weight"] if last else [])
    assert [last for rank in ranks for last in rank["last"]].count(True) == 1
    assert ranks[-1]["last"][-1]


@layouts
def test_its_values_are_transformers_values(name: str, trained: Any) -> None:
    _, theirs, ours = trained
    *others, last = ours[name]
    assert last["shapes"] == [[2, 12, 1], [2, 12, 1]]
    assert theirs["shape"] == [2, 12, 1]
    assert all(rank["values"] == [] for rank in others)
    ours_flat, theirs_flat = (
        [value for batch in found for row in batch for value in row] for found in (last["values"], theirs["values"])
    )
    assert len(ours_flat) == 2 * 2 * 11
    assert ours_flat == pytest.approx(theirs_flat, rel=0, abs=CLOSE)
    assert max(theirs_flat) - min(theirs_flat) > 0.1  # they would be close as well if all were alike


@layouts
def test_its_loss_and_gradients_are_transformers(name: str, trained: Any) -> None:
    _, theirs, ours = trained
    assert sum(ours[name][-1]["losses"]) / 2 == pytest.approx(theirs["loss"], rel=CLOSE)
    found = {key: value for rank in ours[name] for key, value in rank["gradients"].items()}
    assert found.keys() == {key for rank in ours["PP1"] for key in rank["gradients"]}
    assert len(found) == 3 + 8 * LAYERS  # embedding, last norm and head; a layer has four matrices and four norms
    for key, (distance, largest) in found.items():
        assert largest > 0, key
        assert distance <= CLOSE * largest, key


@layouts
def test_what_was_saved_is_what_is_loaded(name: str, trained: Any) -> None:
    for rank in trained[2][name]:
        assert rank["again"] == {"absent": [], "left": [], "missed": [], "different": []}


@layouts
def test_a_gpt_checkpoint_lacks_the_head_and_nothing_else(name: str, trained: Any) -> None:
    *others, last = trained[2][name]
    head = ["value_head.weight"]
    assert last["from_gpt"] == {"absent": head, "left": ["output_layer.weight"], "missed": head, "different": head}
    for rank in others:
        assert rank["from_gpt"]["missed"] == rank["from_gpt"]["different"] == []


@layouts
def test_what_megatron_saved_is_what_transformers_saved(name: str, trained: Any) -> None:
    """The same critic twice, by two frameworks: all is equal but the bias, for which Megatron's head has no place."""
    layout = {"pp": 1, "chunks": 1, **LAYOUTS[name]}
    saved = trained[0] / f"pp{layout['pp']}-{layout['chunks']}"
    rules = [rule for rule in rule_loader.load_rules() if rule.on == "comparison"]
    seen = Comparison(open_side(str(saved / "critic")), open_side(str(trained[0] / "critic")), critic=True)
    report = run_rules(seen, rules)
    assert report.verdict == "clean", report.findings
    assert "heads of their own: score.bias " in f"{seen.subject} "
    assert "score.weight" in {pair.name for pair in seen.match_result.pairs}
    other = Comparison(open_side(str(saved / "gpt")), open_side(str(saved / "critic")), critic=True)
    assert run_rules(other, rules).verdict == "clean"
    assert set(other.match_result.heads.values()) == {"output_layer.weight", "value_head.weight"}
