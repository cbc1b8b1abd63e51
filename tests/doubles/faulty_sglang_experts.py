"""The SGLang worker whose loader writes experts to the slots of the start, wherever they were moved since."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ckptcheck_worker import sglang_engine

DOUBLES = str(Path(__file__).parent)


def register() -> None:
    """Keep the first map of the loader. A plugin of every process of SGLang."""
    from sglang.srt.eplb.expert_location import ExpertLocationMetadata

    asked, first = ExpertLocationMetadata.logical_to_all_physical, {}

    def by_the_start(self: ExpertLocationMetadata, layer: int, expert: int, *more: bool) -> list[int]:
        return first.setdefault((layer, expert), asked(self, layer, expert, *more))

    ExpertLocationMetadata.logical_to_all_physical = by_the_start


sys.path.append(DOUBLES)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), DOUBLES)))
sglang_engine.PLUGINS["experts"] = f"{Path(__file__).stem}:register"
RPC_METHODS = sglang_engine.RPC_METHODS
