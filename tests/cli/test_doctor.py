"""``ckptcheck doctor``."""

from __future__ import annotations

from pathlib import Path

from tests.factories.checkpoint_cases import ROOT
from tests.factories.command_line import run, run_from_scratch


def test_doctor(here: Path) -> None:
    result = run(here, "doctor", HF_ENDPOINT="http://user:secret@127.0.0.1:1")
    assert result.returncode == 0
    assert "✓ safetensors" in result.stdout
    assert "endpoint http://127.0.0.1:1" in result.stdout
    assert f"rules from {ROOT / 'rules'}" in result.stdout
    assert "Landlock" in result.stdout
    assert "templates and tokenizers are loaded" in result.stdout


def test_an_endpoint_that_cannot_be_is_a_sentence(here: Path) -> None:
    """huggingface_hub looks at the port when it is imported, and raises ValueError."""
    for endpoint in ("http://127.0.0.1:99999", "http://[::1", "http://:80"):
        result = run_from_scratch(here, "scan", "hf://org/name", HF_ENDPOINT=endpoint)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.startswith("ckptcheck: HF_ENDPOINT has no valid host or port\n")
    said = run_from_scratch(here, "doctor", HF_ENDPOINT="http://127.0.0.1:99999")
    assert said.returncode == 0
    assert "– endpoint http://127.0.0.1:99999: HF_ENDPOINT has no valid host or port" in said.stdout
