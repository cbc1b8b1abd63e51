"""``ckptcheck doctor``."""

from __future__ import annotations

from pathlib import Path

from tests.factories.checkpoint_cases import ROOT
from tests.factories.command_line import run


def test_doctor(here: Path) -> None:
    result = run(here, "doctor", HF_ENDPOINT="http://user:secret@127.0.0.1:1")
    assert result.returncode == 0
    assert "✓ safetensors" in result.stdout
    assert "endpoint http://127.0.0.1:1" in result.stdout
    assert f"rules from {ROOT / 'rules'}" in result.stdout
    assert "Landlock" in result.stdout
    assert "templates and tokenizers are loaded" in result.stdout
