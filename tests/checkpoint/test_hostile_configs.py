"""Values in configurations that no writer writes, and that made a rule crash: found by ``make fuzz DOOR=config``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from tests.factories.checkpoint_cases import build_checkpoint
from tests.limited_child import run_limited

RULES = rule_loader.load_rules()


@pytest.mark.parametrize(
    ("base", "file", "changes", "code"),
    [
        ("tiny-lora", "adapter_config.json", {"base_model_name_or_path": "\ud800"}, "ADP005"),
        ("tiny-llama", "config.json", {"hidden_size": 10**400, "num_attention_heads": 3.5}, "CFG024"),
        ("tiny-w4a16", "config.json", {"targets": 3}, "QNT020"),
        ("tiny-w4a16", "config.json", {"targets": 1.5}, "QNT020"),
    ],
)
def test_no_rule_crashes(base: str, file: str, changes: dict[str, Any], code: str, tmp_path: Path) -> None:
    folder = build_checkpoint({"base": base}, tmp_path / "ckpt")
    config = json.loads((folder / file).read_text(encoding="utf-8"))
    if "targets" in changes:
        for group in config["quantization_config"]["config_groups"].values():
            group |= changes
    else:
        config |= changes
    (folder / file).write_text(json.dumps(config), encoding="utf-8")
    report = run_rules(open_checkpoint(str(folder)), RULES)
    assert report.crashed == ()
    assert code in (
        *report.passed,
        *(skipped for skipped, _ in report.skipped),
        *(found.code for found in report.findings),
    )


def test_thousands_of_entries_that_match_nothing_are_compared_with_few_names(tmp_path: Path) -> None:
    """Each was compared with each module: minutes for a config and a header of half a megabyte each."""
    folder = build_checkpoint({"base": "tiny-w4a16"}, tmp_path / "ckpt")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"]["ignore"] = [f"model.layers.{layer}.self_attn.k_proj" for layer in range(9000)]
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    entry = {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}
    header = {f"model.layers.{layer}.self_attn.q_proj.weight_packed": entry for layer in range(5000)}
    raw = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(2))

    def scan() -> str:
        report = run_rules(open_checkpoint(str(folder)), [rule for rule in RULES if rule.code == "QNT023"])
        return f"{len(report.findings)} {report.crashed}"

    outcome = run_limited(scan)
    assert (outcome.fault, outcome.answer) == ("", "4000 ()")
