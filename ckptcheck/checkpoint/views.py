"""Checkpoints as rules on a part of them see them: the part is there.

A rule with ``on="index"`` runs where the checkpoint has an index, and its check takes an `IndexedCheckpoint`, whose `index` is
never None. The object is the checkpoint itself (`Checkpoint.view_for`); these classes exist for the
type checker and for the reader of a rule, and nothing creates an instance of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.components import Components

if TYPE_CHECKING:
    from ckptcheck.checkpoint.config import Config
    from ckptcheck.checkpoint.index import Index
    from ckptcheck.checkpoint.layout import Stack
    from ckptcheck.checkpoint.quantization.quantization import Quantization
    from ckptcheck.checkpoint.tokenizer import Tokenizer


class IndexedCheckpoint(Checkpoint):
    """A checkpoint with an index: ``on="index"``."""

    index: Index


class ConfiguredCheckpoint(Checkpoint):
    """A checkpoint with a config.json: ``on="config"``."""

    config: Config


class TokenizedCheckpoint(Checkpoint):
    """A checkpoint with a tokenizer: ``on="tokenizer"``."""

    tokenizer: Tokenizer


class QuantizedCheckpoint(Checkpoint):
    """A checkpoint that is quantized, by a config or by its tensors: ``on="quantization"``."""

    quantization: Quantization


class LayeredComponents(Components, frozen=True, dict=True):
    """The components of a model that has layers."""

    stack: Stack


class LayeredCheckpoint(Checkpoint):
    """A checkpoint with the layers of a language model: ``on="layers"``."""

    components: LayeredComponents
