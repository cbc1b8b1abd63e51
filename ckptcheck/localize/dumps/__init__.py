"""Dumps of activations that other tools made, read as points.

msprobe.py   the folder of msProbe's PrecisionDebugger (task tensor, level L0), as the verl guide to consistency dumps makes it
sglang.py    SGLang's dumper (a file for each tensor) and its --debug-tensor-dump-output-folder (a file for each pass)
names.py     module names of transformers, vLLM, SGLang and Megatron → points
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ckptcheck.errors import CkptcheckError
from ckptcheck.localize.dumps import msprobe, sglang
from ckptcheck.localize.dumps.names import Shape, ranks_joined
from ckptcheck.localize.localization import Localization


def dumped(here: Path, there: Path, source: Path | None, dtype: str, limit: float | None) -> Localization:
    """Compare two dumps. source: a checkpoint whose config tells how joined projections are to be cut.

    Raises CkptcheckError where a folder holds no dump that is known.
    """
    shape, chosen = Shape(), 0
    if source is not None:
        from ckptcheck.bridge.geometry import Geometry
        from ckptcheck.checkpoint.open import open_checkpoint

        config = open_checkpoint(str(source)).config
        shape = Shape.of(Geometry.of_config(config))
        chosen = (config.integer("num_experts_per_tok") if config else None) or 0
    reference, other = (ranks_joined(_ranks(folder), shape) for folder in (here, there))
    return Localization(f"{here} ↔ {there}", _told_apart(here, there), reference, other, dtype, chosen, limit)


def _told_apart(here: Path, there: Path) -> tuple[str, str]:
    """What the sides are called: their folders' names, their paths where those are equal, for a side is known by its name."""
    for one, other in ((here.name, there.name), (str(here), str(there))):
        if one != other:
            return one, other
    return str(here), f"{there} again"


def _ranks(folder: Path) -> list[dict[str, Any]]:
    if not folder.is_dir():
        raise CkptcheckError(f"{folder} is no folder")
    for reader in (msprobe, sglang):
        found: list[dict[str, Any]] = reader.read(folder)
        if found:
            return found
    raise CkptcheckError(
        f"{folder} holds no dump that is known",
        hint="there should be dump.json of msProbe (task tensor, level L0), or *.pt of SGLang's dumper",
    )
