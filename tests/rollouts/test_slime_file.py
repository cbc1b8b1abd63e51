"""Rollouts in slime's own form: what --load-debug-rollout-data reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ckptcheck import convert_rollouts
from ckptcheck.rollouts import write_rollouts
from tests.factories.rollout_cases import draw_rollouts

torch = pytest.importorskip("torch")


def test_what_is_written_reads_back_the_same(tmp_path: Path) -> None:
    drawn = draw_rollouts(sequences=3, versions="7", layers=2, trainer=False, metadata={"step": 4})
    write_rollouts(drawn, tmp_path / "r.safetensors")
    convert_rollouts(tmp_path / "r.safetensors", tmp_path / "data_4.pt")
    back = convert_rollouts(tmp_path / "data_4.pt")
    assert back.metadata.step == 4
    assert back.metadata.versions == ["7"]
    for name in ("tokens", "starts", "prompt_lengths"):
        assert np.array_equal(back.columns[name], drawn.columns[name]), name
    response = np.concatenate([np.arange(s, e)[4:] for s, e in zip(drawn.starts[:-1], drawn.starts[1:], strict=True)])
    assert np.array_equal(back.columns["engine_logprobs"][response], drawn.columns["engine_logprobs"][response])
    assert "engine_routing" in back


def test_slimes_sample_has_its_fields(tmp_path: Path) -> None:
    drawn = draw_rollouts(sequences=1)
    write_rollouts(drawn, tmp_path / "r.safetensors")
    convert_rollouts(tmp_path / "r.safetensors", tmp_path / "data_0.pt")
    content = torch.load(tmp_path / "data_0.pt", weights_only=True)
    (sample,) = content["samples"]
    assert content["rollout_id"] == 0
    assert sample["status"] in {"pending", "completed", "truncated", "aborted", "failed"}
    assert len(sample["rollout_log_probs"]) == sample["response_length"] == 32
    assert sample["tokens"] == drawn.tokens.tolist()
    assert sample["reward"] == 0.0
