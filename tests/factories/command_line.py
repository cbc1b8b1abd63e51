"""Runs the command as a user does, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT

SCHEMA = json.loads((ROOT / "ckptcheck/linter/reporters/report.schema.json").read_text(encoding="utf-8"))
RULE = '''"""Every model is called Bob.

## What it checks
Its name.
"""
from ckptcheck import Problem, rule


@rule("BOB001", "other-name", severity="warning")
def check(ckpt):
    {body}
'''
"""A rule of a user's own; `body` is what it does."""


def run(here: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ckptcheck", *arguments],
        cwd=here,
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "100", **environment},
        check=False,
    )
