"""Every phase of a trial of a LoRA adapter has its time, and what ends it says which phase it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckptcheck.live.refit.lora.trace import LoraTrace
from ckptcheck.live.refit.lora.trial import LoraTrial
from ckptcheck.live.refit.trial_state import DEFAULTS, Timeouts
from ckptcheck.live.runtime.engines.base import Engine
from ckptcheck.live.runtime.process.deadlines import remaining_seconds
from ckptcheck.live.runtime.process.errors import WorkerTimeout
from tests.doubles.fake_lora import FakeAdapterEngine

NBYTES = 10**11
"""Weights of 100 GB: each phase gets 2,000 s more."""


def run(folder: Path, engine: type[FakeAdapterEngine], timeouts: Timeouts | None = None) -> LoraTrace:
    for name, file, text in (("model", "base", "1.0"), ("lora", "adapter", json.dumps((0.25, 0.5)))):
        (folder / name).mkdir()
        (folder / name / file).write_text(text)

    def start(checkpoint: Path, serves_adapters: bool, replaces: Engine | None) -> Engine:
        return engine(checkpoint)

    return LoraTrial(
        LoraTrace("model", "lora", "reload"), start, folder / "model", folder / "lora", vocabulary=32, block=16,
        folder=folder, timeouts=timeouts, nbytes=NBYTES,
    ).run()  # fmt: skip


def test_every_call_has_the_time_of_its_phase(tmp_path: Path) -> None:
    limits: dict[str, list[float]] = {"start": [], "sync": []}

    class Timed(FakeAdapterEngine):
        def __init__(self, checkpoint: Path) -> None:
            limits["start"].append(remaining_seconds(1e9))
            super().__init__(checkpoint)

        def write_variant(self, adapter: Path, folder: Path, seed: int) -> None:
            limits["sync"].append(remaining_seconds(1e9))
            super().write_variant(adapter, folder, seed)

    assert not run(tmp_path, Timed).failed_phases
    for kind, seconds in limits.items():
        assert seconds
        assert all(DEFAULTS[kind] + 1000 < each <= DEFAULTS[kind] + 2000 for each in seconds)


@pytest.mark.parametrize("limit", [30.0, None])
def test_a_phase_that_takes_too_long_is_named_with_its_time(limit: float | None, tmp_path: Path) -> None:
    class Hanging(FakeAdapterEngine):
        def load_adapter(self, name: str, folder: Path, update: str = "reload") -> None:
            raise WorkerTimeout("fake did not answer")

    failed = run(tmp_path, Hanging, Timeouts(sync=limit)).failed_phases
    assert [*failed] == ["load the adapter"]
    assert f"the phase had {limit or 2300:,.0f} s (--set timeout=sync=SECONDS)" in failed["load the adapter"]
