"""The examples of docs/reports.md run, one after the other as a reader would type them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import ckptcheck
from ckptcheck.cli.verb_command import load_verb
from ckptcheck.rollouts import write_rollouts
from ckptcheck.verbs import VERBS
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.factories.history_cases import build_history
from tests.factories.rollout_cases import draw_rollouts
from tests.paths import ROOT
from tests.test_site import load_builder

PAGE = (ROOT / "docs" / "reports.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL)


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("my-model", "exported-model", "broken-model"):
        shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", tmp_path / name)
    (tmp_path / "broken-model/model-00002-of-00003.safetensors").unlink()
    job = "actor_rollout_ref:\n  model: {path: elsewhere}\n  rollout: {name: vllm}\n"
    (tmp_path / "job.yaml").write_text(job, encoding="utf-8")
    write_rollouts(draw_rollouts(noise=0.001), tmp_path / "rollouts.safetensors")
    build_history({"syncs": [{"step": step, "version": str(step)} for step in range(3)]}, tmp_path / "syncs.jsonl")
    monkeypatch.chdir(tmp_path)
    assert len(BLOCKS) >= 8
    names: dict[str, object] = {}
    for block in BLOCKS:
        exec(compile(block, "docs/reports.md", "exec"), names)
    assert "model-00002-of-00003.safetensors is missing" in capsys.readouterr().out


def test_the_reference_has_every_name_and_every_argument() -> None:
    reference = load_builder().describe_api()
    for name in ckptcheck.__all__:
        assert name == "__version__" or f"\n## {name}\n" in reference
    for words in VERBS:
        verb = load_verb(words)
        for name, parameter in verb.parameters.items() if f"`ckptcheck {words}`" in reference else ():
            assert parameter.declared is None or f"`{name}` |" in reference or f"`*{name}` |" in reference
    assert "| `atol` | a number from 0 | 0.0 | Absolute tolerance. |" in reference


def test_its_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\((?!http)([^)#]+)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
