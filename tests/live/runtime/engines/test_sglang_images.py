"""What SGLang keeps of images, on its own classes: its Qwen-VL models do not start without SGLang's kernels for CPUs."""

from __future__ import annotations

import pytest

from tests.conftest import needs_engine
from tests.live.runtime.engines.sglang_scripts import run_in_sglang

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("sglang-cpu")]
SCRIPT = """
from unittest.mock import MagicMock
import torch
from sglang.srt.managers import mm_schedule
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.multimodal_cache import EmbeddingResult

def keep(size):
    mm_schedule.init_mm_embedding_cache(size)
    cache = mm_schedule.embedding_cache
    cache.set(7, EmbeddingResult(embedding=torch.ones(4)))
    before = cache.has(7)
    scheduler = MagicMock()
    scheduler.is_fully_idle.return_value = True
    return [before, Scheduler.flush_cache(scheduler), cache.has(7)]

answer({"default": keep(1 << 20), "off": keep(0)})
"""


def test_a_flush_leaves_what_is_kept_of_images() -> None:
    """REF033 and REF011 say so, and that nothing is kept in a cache of no size."""
    needs_engine("sglang")
    found = run_in_sglang(SCRIPT)
    assert found["default"] == [True, True, True]
    assert found["off"] == [False, True, False]
