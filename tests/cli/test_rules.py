"""``ckptcheck rules`` and ``ckptcheck rule``."""

from __future__ import annotations

import json
from pathlib import Path

from tests.factories.command_line import run


def test_rules_lists_every_rule_and_rule_prints_its_page(here: Path) -> None:
    from ckptcheck.linter import rule_loader

    listed = json.loads(run(here, "rules", "--format", "json").stdout)
    assert [entry["code"] for entry in listed] == [rule.code for rule in rule_loader.load_rules()]
    page = run(here, "rule", "idx001").stdout
    assert page.startswith(
        "# IDX001 missing-shard (error)\n\nThe index names a shard that does not exist.\n\n## What it checks\n"
    )
