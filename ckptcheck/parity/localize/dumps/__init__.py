"""Reads activation dumps of other tools as points.

msprobe.py   the folder of msProbe's PrecisionDebugger (task tensor, level L0), as the verl guide to consistency dumps makes it
sglang.py    SGLang's dumper (a file for each tensor) and its --debug-tensor-dump-output-folder (a file for each pass)
names.py     module names of transformers, vLLM, SGLang and Megatron → points
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ckptcheck.errors import CkptcheckError
from ckptcheck.parity.localize.dumps import msprobe, sglang
from ckptcheck.parity.localize.dumps.names import AttentionShape, join_ranks
from ckptcheck.parity.localize.localization import Localization


def compare_dumps(here: Path, there: Path, source: Path | None, dtype: str, limit: float | None) -> Localization:
    """Compare two dumps. source: a checkpoint whose config says how to split fused projections; None: they are not compared.

    Raises CkptcheckError where a folder holds no known dump.
    """
    shape, experts_per_token = AttentionShape(), 0
    if source is not None:
        from ckptcheck.checkpoint.open import open_checkpoint
        from ckptcheck.compare.bridge.model_dimensions import ModelDimensions

        config = open_checkpoint(str(source)).config
        shape = AttentionShape.of(ModelDimensions.from_config(config))
        experts_per_token = (config.integer("num_experts_per_tok") if config else None) or 0
    reference, other = (join_ranks(_read_ranks(folder), shape) for folder in (here, there))
    return Localization(
        f"{here} ↔ {there}", _name_sides(here, there), reference, other, dtype, experts_per_token, limit
    )


def _name_sides(here: Path, there: Path) -> tuple[str, str]:
    """Return two different names of the sides: the folders' names, or their paths where the names are equal."""
    for first, second in ((here.name, there.name), (str(here), str(there))):
        if first != second:
            return first, second
    return str(here), f"{there} again"


def _read_ranks(folder: Path) -> list[dict[str, Any]]:
    """Return, rank by rank, module name → tensor. Raises CkptcheckError where the folder holds no known dump."""
    if not folder.is_dir():
        raise CkptcheckError(f"{folder} is no folder")
    for reader in (msprobe, sglang):
        ranks: list[dict[str, Any]] = reader.read(folder)
        if ranks:
            return ranks
    raise CkptcheckError(
        f"{folder} holds no dump that is known",
        hint="there should be dump.json of msProbe (task tensor, level L0), or *.pt of SGLang's dumper",
    )
