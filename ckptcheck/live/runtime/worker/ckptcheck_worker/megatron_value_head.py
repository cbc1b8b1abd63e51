"""A critic on megatron-core: a GPT model with a value head in place of the output layer (ROLL's McaValueModel)."""

from __future__ import annotations

from typing import Any

import torch


def make_value_model_class() -> type:
    """Return a GPTModel whose last stage computes values [batch, length, 1] by a Linear that no rank shards.

    Its constructor takes one more argument, value_bias: whether the head has a bias, as transformers' and TRL's have.
    """
    from megatron.core.models.gpt.gpt_model import GPTModel

    class ValueModel(GPTModel):  # type: ignore[misc]
        post_process: bool

        def __init__(self, *arguments: Any, value_bias: bool, **named: Any) -> None:
            super().__init__(*arguments, **named)
            if self.post_process:
                self.output_layer = None
                self.value_head = torch.nn.Linear(
                    self.config.hidden_size, 1, bias=value_bias, dtype=self.config.params_dtype
                )

        def forward(self, *arguments: Any, **named: Any) -> Any:
            last = self.post_process
            # then GPTModel returns the hidden states [length, batch, hidden]
            self.post_process = False
            try:
                hidden = super().forward(*arguments, **named)
            finally:
                self.post_process = last
            return self.value_head(hidden).transpose(0, 1).contiguous() if last else hidden

    return ValueModel
