"""A healthy trial says in one sentence what it proved; one that found something, or tested nothing, does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.refit.report_sections import describe_proof
from tests.factories.refit_cases import run_trial_case

RULES = [rule for rule in rule_loader.load_rules() if rule.on == "refit"]

OUT = "model.layers.1.self_attn.o_proj.weight"


def proof(table: dict[str, Any], folder: Path) -> str:
    trace = run_trial_case(table, folder)
    assert [section.title for section in trace.sections].count("what this trial proved") == bool(describe_proof(trace))
    return describe_proof(trace)


def test_a_healthy_trial_says_what_it_proved(tmp_path: Path) -> None:
    said = proof({}, tmp_path / "trial")
    assert said.startswith(
        "after each of 3 syncs, 19 of 19 tensors equal a cold load of the same weights bit for bit; "
    )
    assert "; marks show that syncs 1 and 3 wrote all of the 18 that could be marked; " in said
    assert (
        "; before any step the trainer exported 35 tensors as SOURCE has them; logprobs are those of the cold load, and"
        in said
    )
    assert said.endswith("nats of the trainer's, which is under the floor")


def test_a_short_trial_claims_no_more_than_it_did(tmp_path: Path) -> None:
    said = proof({"settings": {"steps": 0, "logprobs": False}}, tmp_path / "one")
    assert said.startswith("after the sync, ")
    assert "marks show that sync 1 wrote" in said
    assert "logprobs" not in said
    said = proof({"settings": {"weights": False}}, tmp_path / "two")
    assert said.startswith("logprobs are those of the cold load")


@pytest.mark.parametrize(
    "table",
    [
        {"faults": [{"kind": "cast", "name": OUT}]},
        {"faults": [{"kind": "dropped", "name": OUT}]},
        {"faults": [{"kind": "renamed", "name": "lm_head.packed"}]},
        {"faults": [{"kind": "renamed", "name": OUT, "other": "else"}]},
        {"trainer": {"frozen": ["model", "lm_head"]}},
        {"trainer": {"apart": True}},
    ],
)
def test_where_something_is_wrong_nothing_is_claimed(table: dict[str, Any], tmp_path: Path) -> None:
    assert proof(table, tmp_path / "trial") == ""


def test_without_decoding_the_report_says_what_is_not_seen(tmp_path: Path) -> None:
    trace = run_trial_case({"settings": {"decode": 0}}, tmp_path / "fast")
    left_out = next(section for section in trace.sections if section.title == "left out by --fast")
    assert any("REF017" in line for line in left_out.lines)
    assert "; logprobs by prefill are those of the cold load" in describe_proof(trace)
    assert all(not scoring.forced_decode and scoring.greedy_text is None for scoring in trace.scorings)
    assert trace.noise_floor.engine.decode is None
    slow = {"faults": [{"kind": "decode"}]}
    found = {finding.code for finding in run_rules(run_trial_case(slow, tmp_path / "slow"), RULES).findings}
    assert "REF012" in found
    fast = run_rules(run_trial_case({**slow, "settings": {"decode": 0}}, tmp_path / "faster"), RULES)
    assert not fast.findings
    wrong = {"faults": [{"kind": "path"}], "settings": {"decode": 0}}
    assert "REF010" in {
        finding.code for finding in run_rules(run_trial_case(wrong, tmp_path / "wrong"), RULES).findings
    }
