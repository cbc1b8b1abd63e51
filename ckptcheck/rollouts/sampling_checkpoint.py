"""The checkpoint whose weights drew the tokens of rollouts, as far as rules hold it against them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ckptcheck.errors import CkptcheckError

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.rollouts.prompts import PromptTokenizer


@dataclass(frozen=True)
class ExpertLayout:
    """The experts of a model."""

    experts: int
    """Number of routed experts of a layer."""
    choices: int | None
    """Experts that a token goes to; None where config.json does not say."""
    layers: int
    """Number of layers, without those of multi-token prediction."""
    routed_layers: tuple[int, ...]
    """The layers that have experts, in order, without those of multi-token prediction."""
    mtp_layers: int
    """Number of layers of multi-token prediction."""


def read_expert_layout(ckpt: Checkpoint) -> ExpertLayout | None:
    """Return what tensor names and config.json say; None where the model has no experts, or its layers are not recognised."""
    from ckptcheck.checkpoint.config import EXPERTS_PER_TOKEN, MTP_LAYERS
    from ckptcheck.checkpoint.experts import fused_names, iter_numbered_experts

    anatomy = ckpt.components
    layers, experts = anatomy.num_layers, anatomy.num_experts
    if layers is None or not isinstance(experts, int) or experts < 1:
        return None
    routed = {layer for layer, *_ in iter_numbered_experts(anatomy)} | {layer for layer, _ in fused_names(anatomy)}
    routed = {layer for layer in routed if layer < layers}
    if not routed:
        return None
    config = ckpt.config
    choices = config.integer(*EXPERTS_PER_TOKEN) if config is not None else None
    mtp = len(anatomy.mtp_layers) or (config.integer(*MTP_LAYERS) if config is not None else 0) or 0
    return ExpertLayout(experts, choices, layers, tuple(sorted(routed)), mtp)


@dataclass(frozen=True)
class SamplingCheckpoint:
    """What a checkpoint says about tokens that it drew."""

    checkpoint: Checkpoint = field(repr=False)

    @cached_property
    def expert_layout(self) -> ExpertLayout | None:
        """Its experts; None where it has none."""
        return read_expert_layout(self.checkpoint)

    @cached_property
    def reader(self) -> PromptTokenizer | None:
        """Its tokenizer and chat template; None where it has no tokenizer.json that can be read."""
        from ckptcheck.rollouts.prompts import PromptTokenizer

        try:
            return PromptTokenizer.of(self.checkpoint)
        except CkptcheckError:
            return None

    @cached_property
    def stop_tokens(self) -> frozenset[int]:
        """Ids that generation_config.json or config.json name as the end of a response."""
        configs = (self.checkpoint.generation_config, self.checkpoint.config)
        values = [config.get("eos_token_id") for config in configs if config is not None]
        ids = [token for value in values for token in (value if isinstance(value, list) else [value])]
        return frozenset(token for token in ids if type(token) is int and token >= 0)
