"""Plays the trial of a LoRA adapter with a fake engine that has faults; cold loads of it have none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ckptcheck.live.refit.lora.trace import LoraTrace
from ckptcheck.live.refit.lora.trial import LoraTrial
from ckptcheck.live.runtime.engines.base import Engine
from tests.doubles.fake_lora import AdapterFault, FakeAdapterEngine
from tests.factories.case_table import CaseTable


class LoraCase(CaseTable, kw_only=True):
    """A case of a rule on a trial of a LoRA adapter."""

    faults: list[AdapterFault] = []
    """What the engine does wrong, see `FakeAdapterEngine`."""
    everywhere: bool = False
    """Its cold loads do it too."""
    update: str = "reload"
    """How the adapter is replaced under its name."""
    adapter: tuple[float, float] = (0.25, 0.5)
    """The two numbers that the adapter adds."""
    block: int = 16
    """Tokens that the prefix cache keeps together, 0 for none."""


def run_lora_case(table: Mapping[str, Any], folder: Path) -> LoraTrace:
    """Play the trial of a case."""
    case = msgspec.convert(table, LoraCase)
    for name in ("model", "lora"):
        (folder / name).mkdir(parents=True)
    (folder / "model" / "base").write_text("1.0")
    (folder / "lora" / "adapter").write_text(json.dumps(case.adapter))

    def start(checkpoint: Path, _: bool, replaces: Engine | None) -> Engine:
        return FakeAdapterEngine(checkpoint, case.faults if replaces is None or case.everywhere else ())

    return LoraTrial(
        LoraTrace("model", "lora", case.update), start, folder / "model", folder / "lora",
        vocabulary=32, block=case.block, folder=folder,
    ).run()  # fmt: skip
