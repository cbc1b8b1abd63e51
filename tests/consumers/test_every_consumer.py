"""Every registered consumer answers everything that rules, the table and the repair ask; a new one is only registered."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ckptcheck.cli.app import build_app
from ckptcheck.consumers.base import LINEAR, Decision, Module
from ckptcheck.consumers.consumer import Consumer
from ckptcheck.consumers.effects import describe_effect
from ckptcheck.consumers.mismatches import Mismatch
from ckptcheck.consumers.registry import CONSUMERS
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.paths import ROOT

PAGE = ROOT / "docs" / "adding-a-consumer.md"
NAMES = (("weight", "weight"), ("weight_packed", "weight"), ("weight", "weight_packed"))
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "as stored": ("tiny-w4a16", {}, {}),
    "quantized, but ignored": ("tiny-w4a16", {"ignore": ["re:.*mlp.gate", "re:.*self_attn.*", "lm_head"]}, {}),
    "quantized, but not targeted": ("tiny-w4a16", {"config_groups": {"group_0": {"targets": ["re:.*mlp.*"]}}}, {}),
    "quantized under the same name, but ignored": (
        "tiny-fp8",
        {"modules_to_not_convert": ["lm_head", "model.layers.0.self_attn.o_proj"]},
        {},
    ),
    "unquantized, but not ignored": ("tiny-fp8", {"modules_to_not_convert": ["lm_head"]}, {}),
    "a fused module is split": ("tiny-w4a16", {"ignore": ["re:.*q_proj", "lm_head"]}, {}),
    "a refused list": ("tiny-w4a16", {"ignore": ["re:*.mlp"]}, {}),
    "an unused and a misspelt entry": ("tiny-w4a16", {"ignore": ["lm_head", "re:.*visual.*", "re:mlp.down_proj$"]}, {}),
    "an architecture that nobody has built": (
        "tiny-w4a16",
        {"ignore": ["re:.*down_proj"]},
        {"architectures": ["NobodyKnowsForCausalLM"]},
    ),
    "a method that nobody knows": ("tiny-w4a16", {"quant_method": "spqr"}, {}),
    "no method": ("tiny-w4a16", {"quant_method": None}, {}),
    "GPTQ": ("tiny-gptq", {}, {}),
    "ModelOpt": ("tiny-nvfp4", {}, {}),
}


def write(case: str, folder: Path) -> Path:
    """Write the checkpoint of a case."""
    base, quantization, config_changes = CASES[case]
    shutil.copytree(CHECKPOINTS / base, folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | config_changes
    for key, value in quantization.items():
        old = config["quantization_config"].get(key)
        if key == "config_groups":
            value = {name: old[name] | changes for name, changes in value.items()}
        config["quantization_config"][key] = value
    path.write_text(json.dumps(config), encoding="utf-8")
    return folder


def scan(*arguments: str) -> Any:
    return CliRunner().invoke(build_app(), ["scan", *arguments])


@pytest.mark.parametrize("consumer", CONSUMERS.values(), ids=lambda consumer: consumer.name)
def test_every_mismatch_has_a_sentence(consumer: Consumer) -> None:
    for is_stored_quantized, (stored, built), scale, is_guess, rejects in product(
        (True, False), NAMES, (None, "weight_scale"), (True, False), (True, False)
    ):
        module = Module("a.b", "Linear", LINEAR, ("a.b",), is_guess=is_guess, rejects_unknown_tensors=rejects)
        decision = Decision(quantized=not is_stored_quantized)
        mismatch = Mismatch(consumer, "a.b", module, decision, is_stored_quantized)
        sentence = describe_effect(mismatch, stored, built, scale)
        assert re.match(r"[a-z]+s ", sentence), sentence
        assert "{" not in sentence


@pytest.mark.parametrize(
    ("names", "case"),
    [*((",".join(CONSUMERS), case) for case in CASES), *((name, "a fused module is split") for name in CONSUMERS)],
)
def test_every_case_is_reported(names: str, case: str, tmp_path: Path) -> None:
    """No rule crashes, and the table has a row for each consumer; one without an answer makes the report incomplete."""
    folder = write(case, tmp_path / "ckpt")
    result = scan(str(folder), "--select", "QNT", "--headers-only", "--consumers", names, "--format", "json")
    report = json.loads(result.stdout)
    assert not report["crashed"]
    is_answered = not report.get("error", "").startswith("--consumers")
    assert result.exit_code in ((0, 1) if is_answered else (2,)), result.output
    if case != "no method":
        rows = report["consumers"]
        assert [(row["consumer"], row["version"]) for row in rows] == [
            (name, CONSUMERS[name].version) for name in names.split(",")
        ]
        assert all(row["agrees"] for row in rows)
        assert is_answered is not any(row["agrees"].startswith("unknown: ") for row in rows)


@pytest.mark.parametrize("name", CONSUMERS)
def test_the_repair_asks_every_consumer(name: str, tmp_path: Path) -> None:
    folder = write("unquantized, but not ignored", tmp_path / "ckpt")
    result = scan(str(folder), "--select", "QNT", "--consumers", name, "--fix")
    assert result.exit_code in (0, 1) or "--consumers could not tell about" in result.output


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Consumer]:
    """The consumer of docs/adding-a-consumer.md, as the page has it, registered."""
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)[0]
    names: dict[str, Any] = {"__name__": "toyserve"}
    exec(compile(code, str(PAGE), "exec"), names)
    consumer: Consumer = names["TOYSERVE"]
    monkeypatch.setitem(CONSUMERS, consumer.name, consumer)
    return consumer


def test_the_consumer_of_the_page_goes_through_a_scan(toy: Consumer, tmp_path: Path) -> None:
    folder = write("quantized, but ignored", tmp_path / "ckpt")
    result = scan(str(folder), "--consumers", "toyserve")
    assert result.exit_code == 1
    assert (
        "model.layers.0.mlp.gate_proj and 5 more are stored quantized, but ignored by 're:.*mlp.gate': toyserve 1.0 "
        "skips model.layers.0.mlp.gate_proj.weight_packed and serves zeros in its place"
    ) in " ".join(result.stdout.split())
    assert "toyserve 1.0" in result.stdout
    assert scan(str(CHECKPOINTS / "tiny-w4a16"), "--consumers", "toyserve").exit_code == 0
    assert "did you mean toyserve?" in str(scan(str(folder), "--consumers", "toyserv").exception)


def test_the_repair_writes_a_list_for_the_consumer_of_the_page(toy: Consumer, tmp_path: Path) -> None:
    folder = write("quantized, but ignored", tmp_path / "ckpt")
    result = scan(str(folder), "--consumers", "toyserve", "--fix")
    assert result.exit_code == 0, result.output
    assert json.loads((folder / "config.json").read_text())["quantization_config"]["ignore"] == ["lm_head"]


def test_a_consumer_that_stops_says_so(toy: Consumer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONSUMERS, toy.name, replace(toy, stops_at_unknown_tensors=True))
    result = scan(str(write("quantized, but ignored", tmp_path / "ckpt")), "--consumers", "toyserve")
    assert "toyserve 1.0 stops at model.layers.0.mlp.gate_proj.weight_packed" in " ".join(result.stdout.split())


def test_a_consumer_that_is_a_default_is_asked_by_every_scan(
    toy: Consumer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONSUMERS, toy.name, replace(toy, is_default=True))
    result = scan(str(write("quantized, but ignored", tmp_path / "ckpt")))
    assert "toyserve 1.0 skips" in " ".join(result.stdout.split())


def test_a_new_trainer_is_compared_with_a_new_engine(
    toy: Consumer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CONSUMERS, toy.name, replace(toy, sync_effect="loses what it is sent"))
    trainer = replace(CONSUMERS["slime"], name="toytrain", title="ToyTrain", matches_parameters=False)
    monkeypatch.setitem(CONSUMERS, trainer.name, trainer)
    folder = write("as stored", tmp_path / "ckpt")
    result = scan(str(folder), "--select", "QNT028", "--consumers", "toytrain,toyserve")
    assert result.exit_code == 1
    assert (
        "toytrain packs model.embed_tokens at every sync, which engines build unquantized: toyserve 1.0 loses what it is sent"
    ) in " ".join(result.stdout.split())


def test_the_help_names_every_consumer() -> None:
    """The command line starts without importing the consumers, so its help has their names as text."""
    shown = " ".join(re.sub(r"[^\w,.:-]+", " ", scan("--help").output).split()).replace(
        "- ", "-"
    )  # a line may end there
    assert ", ".join(CONSUMERS) in shown, "add the name to the help of --consumers in ckptcheck/verbs/scan.py"


def test_a_fact_that_is_left_out_is_named() -> None:
    with pytest.raises(TypeError, match="missing_parameter_effect"):
        Consumer(name="toy", title="Toy", version="1", read_config=None, structures=None)  # type: ignore[call-arg,arg-type]
