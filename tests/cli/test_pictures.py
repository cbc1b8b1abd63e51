"""``--format html`` and ``json-with-pictures`` draw what was found; no other format draws anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from ckptcheck.cli.app import build_app
from ckptcheck.linter.evidence import Evidence
from ckptcheck.linter.pictures import Picture
from ckptcheck.reporters import FORMATS, WITH_PICTURES, evidence_pictures
from ckptcheck.rollouts.files import write_rollouts
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.factories.history_cases import build_history
from tests.factories.rollout_cases import draw_rollouts

LLAMA = str(CHECKPOINTS / "tiny-llama")


@pytest.fixture
def commands(tmp_path: Path) -> dict[str, list[str]]:
    """Return a title that a page has → the command that draws it."""
    build_history({"syncs": [{"step": step} for step in range(3)]}, tmp_path / "syncs.jsonl")
    write_rollouts(draw_rollouts(noise=0.05), tmp_path / "rollouts.safetensors")
    (tmp_path / "job.yaml").write_text("actor_rollout_ref: {actor: {strategy: fsdp}, rollout: {name: vllm}}\n")
    return {
        "Values by layer": ["scan", LLAMA],
        "Tensors by layer": ["diff", LLAMA, LLAMA],
        "What the trainer sent": ["refit", "history", str(tmp_path / "syncs.jsonl")],
        "Trainer against engine": ["parity", "judge", str(tmp_path / "rollouts.safetensors")],
        "Both sides, side by side": ["preflight", str(tmp_path / "job.yaml")],
    }


@pytest.mark.parametrize("form", FORMATS)
def test_the_formats_that_show_pictures_have_them(
    form: str, commands: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, drawn = evidence_pictures.draw_pictures, list[str]()

    def watch(evidence: Evidence) -> tuple[Picture, ...]:
        drawn.append(evidence.kind)
        return draw(evidence)

    monkeypatch.setattr(evidence_pictures, "draw_pictures", watch)
    for title, words in commands.items():
        output = tmp_path / "report"
        CliRunner().invoke(build_app(), [*words, "--format", form, "-o", str(output)], catch_exceptions=False)
        assert (title in output.read_text(encoding="utf-8")) is (form in WITH_PICTURES), words
    assert drawn == (["checkpoint", "comparison", "history", "rollouts", "job"] if form in WITH_PICTURES else [])
