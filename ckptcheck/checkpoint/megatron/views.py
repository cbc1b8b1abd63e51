"""Megatron checkpoints as rules on a part of them see them, as `ckptcheck.checkpoint.views` has for Hugging Face checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.checkpoint.megatron.megatron import Megatron

if TYPE_CHECKING:
    from ckptcheck.checkpoint.megatron.dcp import Contents


class DcpCheckpoint(Megatron):
    """A torch_dist checkpoint with a table of contents (`.metadata`): ``on="dcp"``."""

    if TYPE_CHECKING:
        contents: Contents
