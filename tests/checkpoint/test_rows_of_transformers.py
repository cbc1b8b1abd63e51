"""Rows as transformers leaves them: padding that it holds at zero, and tokens that it adds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.values.detectors.similar_rows import find_near_duplicate_rows
from ckptcheck.values.value_pass import ValuePass
from tests.conftest import needs

pytestmark = pytest.mark.slow

RULES = [rule for rule in rule_loader.load_rules() if rule.code.startswith(("EMB", "VAL010"))]


def told(folder: Path) -> dict[str, str]:
    """Code → what it says; nothing crashed and nothing was skipped."""
    report = run_rules(open_checkpoint(str(folder), value_reader=ValuePass(jobs=1)), RULES)
    assert not report.crashed
    assert not report.skipped
    return {finding.code: finding.message for finding in report.findings}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("steps", [0, 3])
def test_padding_that_is_eos_is_held_at_zero(tmp_path: Path, tied: bool, steps: int) -> None:
    """A head of its own leaves the input row without a gradient for ever; a tied one trains it."""
    needs("torch", "transformers")
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.factories.checkpoint_cases import CHECKPOINTS

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


TURN_END = "<|turn_end|>"


@pytest.mark.parametrize(("dtype", "more"), [("bfloat16", 3), ("float32", 3), ("bfloat16", 0)])
def test_tokens_added_to_a_real_model(smollm2: Path, tmp_path: Path, dtype: str, more: int) -> None:
    """transformers starts them at the mean of all rows; one alone has no neighbour but that."""
    needs("torch", "transformers")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=getattr(torch, dtype))
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    tokenizer.add_special_tokens({"additional_special_tokens": [TURN_END, *(f"<|more_{n}|>" for n in range(more))]})
    model.resize_token_embeddings(len(tokenizer))
    tokenizer.chat_template = tokenizer.chat_template.replace("<|im_end|>", TURN_END)
    tokenizer.eos_token = TURN_END
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.convert_tokens_to_ids(TURN_END)
    model.save_pretrained(tmp_path / "added")
    tokenizer.save_pretrained(tmp_path / "added")
    (code, message), *others = told(tmp_path / "added").items()
    assert (code, others) == ("EMB005", [])
    assert f": 49152 {TURN_END}; token 49152 is used because " in message
    assert ", and its row is within 0." in message
    assert message.endswith("% of its length of the mean of all rows, where a resized embedding starts new tokens")
    with torch.no_grad():  # a little training is enough
        rows = model.get_input_embeddings().weight
        rows[49152] += 0.02 * rows[49152].norm() / rows.shape[1] ** 0.5 * torch.randn(rows.shape[1], dtype=rows.dtype)
    model.save_pretrained(tmp_path / "added")
    assert told(tmp_path / "added") == {}


def test_no_trained_row_of_a_real_model_has_a_neighbour(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those from 5 to 16 are tokens that SmolLM2 never saw. Only rows are read, never the whole matrix."""
    ckpt = open_checkpoint(str(smollm2), value_reader=ValuePass())
    _ = ckpt.values
    reads, real = [], ckpt.source.read
    monkeypatch.setattr(ckpt.source, "read", lambda *where: reads.append(where) or real(*where))
    assert find_near_duplicate_rows(ckpt, "model.embed_tokens.weight", [0, 1, 2, 3, 4, *range(17, 49152, 64)]) == {}
    assert len(reads) < 200
    found = find_near_duplicate_rows(ckpt, "model.embed_tokens.weight", range(5, 17))
    assert len(found) >= 8
    assert {close.other for close in found.values()} <= {*range(5, 17), 36743, 36744, 45175, 48047}
    assert all(length == 1152 for _, _, length in reads)


def test_no_row_of_minilm_has_a_neighbour(minilm: Path) -> None:
    ckpt = open_checkpoint(str(minilm), value_reader=ValuePass())
    assert find_near_duplicate_rows(ckpt, "embeddings.word_embeddings.weight", range(0, 30522, 8)) == {}


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_rows_that_are_not_finite_hide_no_neighbours(tmp_path: Path, odd: float) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    rows = np.random.default_rng(0).normal(0.2, 1, (64, 32)).astype(np.float32)
    rows[[5, 6]] = rows[7]
    rows[6, 0] += 1e-3
    rows[[9, 10], [0, 20]] = odd
    rows[12] = rows[10]
    save_file({"model.embed_tokens.weight": rows}, tmp_path / "model.safetensors")
    ckpt = open_checkpoint(str(tmp_path / "model.safetensors"), value_reader=ValuePass(jobs=1))
    found = find_near_duplicate_rows(ckpt, "model.embed_tokens.weight", range(-1, 70))
    assert found.keys() == {5, 6, 7}
    assert (found[6].other in (5, 7), round(found[6].distance * float(np.linalg.norm(rows[6])), 4)) == (True, 1e-3)


@pytest.mark.parametrize("part", [4, 8])
def test_the_rows_that_the_last_rank_held(smollm2: Path, tmp_path: Path, part: int) -> None:
    """They are 12,288 or 6,144 words, and no padding."""
    import damage

    folder = damage.linked_copy(smollm2, tmp_path / "lost")
    shard = open_checkpoint(str(folder)).shards["model-00001-of-00003.safetensors"]
    low, high = shard.tensors["model.embed_tokens.weight"].data_offsets
    raw = bytearray((folder / shard.name).read_bytes())
    lost = (high - low) // part
    raw[shard.data_start + high - lost : shard.data_start + high] = bytes(lost)
    damage.replace(folder / shard.name, bytes(raw))
    rules = [rule for rule in rule_loader.load_rules() if rule.code in ("VAL005", "EMB001", "EMB002", "EMB003")]
    found = {
        finding.code: finding.message
        for finding in run_rules(open_checkpoint(str(folder), value_reader=ValuePass(jobs=1)), rules).findings
    }
    assert found.keys() == {"VAL005", "EMB002"}
    assert found["VAL005"].startswith(f"{lost:,} consecutive bytes are zero, from byte {high - lost:,} of the data")
    assert found["EMB002"].startswith(f"{49152 // part:,} words have untrained rows (the first is near zero): ")


@pytest.mark.parametrize(("first", "second"), [(2, 3), (0, 1)])
def test_a_rank_of_the_vocabulary_that_was_merged_twice(smollm2: Path, tmp_path: Path, first: int, second: int) -> None:
    """The first two hold the tokens of the chat: that they are copies is then the rank's fault, and told as that alone."""
    import damage

    folder = damage.linked_copy(smollm2, tmp_path / "twice")
    shard = open_checkpoint(str(folder)).shards["model-00001-of-00003.safetensors"]
    low, high = shard.tensors["model.embed_tokens.weight"].data_offsets
    raw = bytearray((folder / shard.name).read_bytes())
    size = (high - low) // 4
    from_, to = (shard.data_start + low + part * size for part in (second, first))
    raw[to : to + size] = raw[from_ : from_ + size]
    damage.replace(folder / shard.name, bytes(raw))
    assert told(folder) == {
        "VAL010": f"1 matrix holds the same quarter of the rows twice, byte for byte (shares {first + 1} and {second + 1} of 4: "
        "one tensor-parallel rank seems to be merged twice): model.embed_tokens.weight"
    }
