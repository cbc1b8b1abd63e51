"""Models that were made for fewer tokens than a check usually asks for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckptcheck.live.refit.scoring_inputs import ScoringInputs, TrialTokenizer
from ckptcheck.live.runtime.engines.sizing import default_context_len


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"max_position_embeddings": 64}, 64),
        ({"max_position_embeddings": 4096}, 512),
        ({"n_positions": 100}, 100),
        ({"text_config": {"max_position_embeddings": 128, "seq_length": 32}, "n_positions": 8}, 32),
        ({"max_position_embeddings": True, "n_positions": -3, "seq_length": "64", "max_seq_len": None}, 512),
        ({}, 512),
        ([], 512),
        (None, 512),
    ],
)
def test_an_engine_is_started_for_what_the_model_has_room_for(tmp_path: Path, config: object, tokens: int) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert default_context_len(tmp_path) == tokens


@pytest.mark.parametrize("length", [512, 300, 266, 265, 128, 64, 40, 16, 8])
def test_what_is_asked_fits(length: int) -> None:
    asked = ScoringInputs.for_trial(1000, 128, TrialTokenizer(), 16, length)
    longest = max(map(len, asked.sequences)) + asked.decode
    assert longest < length
    assert min(map(len, asked.sequences)) > 1
    assert 0 < len(asked.prompt) + asked.decode < length
    assert not asked.probe or 128 < len(asked.probe) < length - 2
    assert bool(asked.probe) == (length > 132)
    if length >= 68:
        assert (asked.decode, len(asked.sequences[0])) == (16, 48)
