"""Settings of generation_config.json against transformers itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.consumers.generation_settings import CACHES, list_refused_at_load
from tests.conftest import needs

TRIED: tuple[dict[str, Any], ...] = (
    *({"max_new_tokens": value} for value in (None, 1, 0, -5, 0.5, True, "x", [1])),
    *({"early_stopping": value} for value in (None, True, False, 0, 1, 2, "never", "x", 1.0)),
    *({"cache_implementation": value} for value in (None, *CACHES, "paper", "Static")),
    *({"compile_config": value} for value in (None, "x", {}, {"dynamic": True})),
    *({"watermarking_config": value} for value in (None, 5, "x", {}, {"bias": 1.0})),
    *(
        {"num_return_sequences": answers, "num_beams": beams, "do_sample": samples}
        for answers in (None, 1, 3)
        for beams in (None, 1, 2, 4)
        for samples in (None, False, True)
    ),
)


@pytest.mark.parametrize("settings", TRIED, ids=json.dumps)
def test_what_transformers_refuses(settings: dict[str, Any], tmp_path: Path) -> None:
    needs("transformers")
    from transformers import GenerationConfig

    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    try:
        GenerationConfig.from_pretrained(tmp_path)
    except Exception:  # any refusal is an answer
        is_refused = True
    else:
        is_refused = False
    assert bool([*list_refused_at_load(settings)]) == is_refused
