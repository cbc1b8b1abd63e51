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

RULES = rule_loader.load_rules()


@pytest.mark.parametrize(
    ("base", "file", "changes", "code"),
    [
        ("tiny-lora", "adapter_config.json", {"base_model_name_or_path": "\ud800"}, "ADP005"),
        ("tiny-llama", "config.json", {"hidden_size": 10**400, "num_attention_heads": 3.5}, "CFG024"),
        ("tiny-w4a16", "config.json", {"targets": 3}, "QNT021"),
        ("tiny-w4a16", "config.json", {"targets": 1.5}, "QNT021"),
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
