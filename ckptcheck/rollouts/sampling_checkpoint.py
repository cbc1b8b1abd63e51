"""The checkpoint whose weights drew the tokens of rollouts, as far as rules hold it against them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ckptcheck.errors import CkptcheckError
from ckptcheck.rollouts.expert_layout import ExpertLayout, read_expert_layout

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.rollouts.prompts import PromptTokenizer


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
