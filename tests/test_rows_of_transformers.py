"""Rows as transformers leaves them: padding that it holds at zero, and tokens that it adds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import needs

from ckptcheck import pack
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.run import run
from ckptcheck.values.measure import attach

RULES = [rule for rule in pack.load() if rule.code.startswith("EMB")]


def told(folder: Path) -> dict[str, str]:
    """Code → what it says; nothing crashed and nothing was skipped."""
    report = run(attach(open_checkpoint(str(folder)), jobs=1), RULES)
    assert not report.crashed
    assert not report.skipped
    return {finding.code: finding.message for finding in report.findings}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("steps", [0, 3])
def test_padding_that_is_eos_is_held_at_zero(tmp_path: Path, tied: bool, steps: int) -> None:
    """A head of its own leaves the input row without a gradient for ever; a tied one trains it."""
    needs("torch", "transformers")
    import torch
    from cases import CHECKPOINTS
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    ends: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, tie_word_embeddings=tied, **sizes, **ends))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.tensor([[1, 5, 7, 2, 1, 6, 9, 2]])
    for _ in range(steps):
        model(input_ids=tokens, labels=tokens).loss.backward()
        assert all(bool(torch.isfinite(weight.grad).all()) for weight in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_bytes((CHECKPOINTS / "tiny-chat" / name).read_bytes())
    assert json.loads((tmp_path / "config.json").read_text())["pad_token_id"] == 2
    held = {} if tied and steps else {"EMB003": "1 row of padding is empty: 2 <|im_end|>"}
    assert told(tmp_path) == held
