"""The kit over ckptcheck's transports on the real engines: who notices what, one engine start for many faults."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import live
import pytest

from ckptcheck.live.conformance.faults import TITLES
from tests.conftest import needs_engine

pytestmark = pytest.mark.engine

SEEN = "detected by ckptcheck"
FRAMEWORK = "detected by the framework"
LOST = {key: {SEEN} for key in ("drop", "drop-tensor", "stale-duplicate")}
"""Neither engine counts what comes: partial updates are allowed."""
COMMON = (
    LOST | {key: {"harmless"} for key in ("poison", "duplicate", "reorder", "delay")} | {"kill-receiver": {FRAMEWORK}}
)
ANSWERS: dict[tuple[str, str], dict[str, set[str]]] = {
    ("vllm", "reload"): {
        "truncate": {FRAMEWORK},
        "kill-sender": {FRAMEWORK},
        "still-version": {"not tried"},
        "two-updates": {"not tried"},
        "generation": {"harmless"},
        "sleep": {"not tried"},
    },
    ("vllm", "load_weights"): {
        "truncate": {FRAMEWORK},
        "kill-sender": {"refused", SEEN, "harmless"},
        "still-version": {"not tried"},
        "two-updates": {SEEN},
        "generation": {"not tried"},
        "sleep": {"not tried"},
    },
    ("vllm", "gloo"): {
        "lose": {FRAMEWORK},
        # gloo takes a tensor that is shorter than announced; the rest stays what the memory held
        "truncate": {SEEN},
        "kill-sender": {FRAMEWORK},
        "still-version": {SEEN},
        "two-updates": {"refused"},
        "generation": {"not tried"},
        "sleep": {"harmless"},
    },
    ("sglang", "gloo"): {
        "lose": {FRAMEWORK},
        "truncate": {SEEN},
        "kill-sender": {"refused", FRAMEWORK},
        "still-version": {SEEN},
        "two-updates": {"refused"},
        "generation": {"not tried"},
        "sleep": {"harmless"},
    },
}
"""Engine and transport → fault → its answers at all places, beside those that all transports have in common."""


@pytest.mark.parametrize(
    ("engine", "transport"),
    [
        pytest.param(
            *pair,
            marks=[pytest.mark.xdist_group(f"{pair[0]}-cpu"), *([pytest.mark.matrix] if pair[1] == "gloo" else [])],
            id="-".join(pair),
        )
        for pair in ANSWERS
    ],
)
def test_who_notices_what(engine: str, transport: str, tmp_path: Path) -> None:
    needs_engine(engine)
    model = live.write("llama", tmp_path / "llama")
    command = [
        sys.executable, "-m", "ckptcheck", "conformance", str(model), "--engine", engine, "--transport", transport,
        "--format", "json",
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    assert "error" not in report, report["error"]
    assert not [finding for finding in report["findings"] if "no fault was tried" in (finding["hint"] or "")]
    assert result.returncode == 0
    kinds = {title: kind for kind, title in TITLES.items()}
    found: dict[str, set[str]] = {}
    for title, _, answer, *_ in report["sections"][0]["rows"]:
        found.setdefault(kinds[title], set()).add(answer)
    assert found == COMMON | ANSWERS[engine, transport]
