"""``ckptcheck critic``: a critic in transformers against the same one in megatron-core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import live
import pytest

import ckptcheck
from ckptcheck.errors import CkptcheckError
from ckptcheck.live.runtime.trainers.critic_layout import CriticLayout
from tests.conftest import needs_engine
from tests.factories.checkpoint_cases import CHECKPOINTS, MEGATRON, write_checkpoint


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("cp2", "Transformer Engine"),
        ("pp2sp", "at least 2 tensor-parallel ranks"),
        ("vpp2", "only one pipeline stage"),
        ("2", "no layout"),
    ],
)
def test_layouts_that_are_not_run_say_why(text: str, why: str) -> None:
    with pytest.raises(CkptcheckError, match=why):
        CriticLayout.parse(text)


def test_layouts_are_read_as_they_are_written() -> None:
    for text in ("tp1", "tp2", "tp2sp", "pp2", "tp2pp2", "pp2vpp2", "tp2ep2sp"):
        assert str(CriticLayout.parse(text)) == text


@pytest.mark.parametrize(
    ("layout", "why"), [("tp3", "num_key_value_heads"), ("pp7", "3 layers"), ("pp3vpp2", "3 layers")]
)
def test_a_model_that_a_layout_cannot_share(layout: str, why: str) -> None:
    with pytest.raises(CkptcheckError, match=why):
        ckptcheck.critic(CHECKPOINTS / "tiny-reward", layouts=layout)


def test_heads_that_are_no_value_heads(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "base": "tiny-reward",
        "tensors": {"model.safetensors": {"score.weight": {"dtype": "F32", "shape": [8, 1]}}},
    }
    write_checkpoint(changes, tmp_path / "critic")
    with pytest.raises(CkptcheckError, match="it is transposed"):
        ckptcheck.critic(tmp_path / "critic")
    with pytest.raises(CkptcheckError, match="is a Megatron run"):
        ckptcheck.critic(MEGATRON / "critic")


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
def test_a_critic_and_a_language_model(tmp_path: Path) -> None:
    """The head that training saved as TRL's, and a language model that gets one, in every layout that fits."""
    needs_engine("megatron")
    changes: dict[str, Any] = {
        "base": "tiny-llama",
        "tensors": {
            "model.safetensors": {
                "v_head.summary.weight": {"dtype": "F32", "shape": [1, 8]},
                "v_head.summary.bias": {"dtype": "F32", "shape": [1]},
            }
        },
    }
    write_checkpoint(changes, tmp_path / "critic")
    report = ckptcheck.critic(tmp_path / "critic", layouts=["tp2", "pp3"])
    assert report.verdict == "clean", report.findings
    assert set(report.passed) == {"HEAD008"}
    assert "head: v_head.summary" in report.subject
    assert any("McaValueModel has none" in line for line in report.sections[1].lines)
    rows = report.sections[0].rows
    assert [row[:2] for row in rows] == [
        ("transformers", "[2, 16, 1]"), ("Megatron tp2", "[2, 16, 1]"), ("Megatron pp3", "[2, 16, 1]")
    ]  # fmt: skip
    # the norms of queries and keys are shared by the ranks, each of which sees its own heads only
    norms = {
        f"model.layers.{layer}.self_attn.{of}_norm.weight": {"dtype": "F32", "shape": [2]}
        for layer in range(3)
        for of in "qk"
    }
    normed: dict[str, Any] = {
        "base": "tiny-llama",
        "json": {"config.json": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 2}},
        "tensors": {"model.safetensors": norms},
    }
    write_checkpoint(normed, tmp_path / "normed")
    report = ckptcheck.critic(tmp_path / "normed", layouts=["tp2", "tp2sp"])
    assert report.verdict == "clean", report.findings
    assert "language model → critic: only score.bias, score.weight are new" in report.sections[1].lines
    assert "not loaded: lm_head.weight" in report.sections[1].lines


@pytest.mark.engine
@pytest.mark.xdist_group("engine")
def test_a_critic_of_experts(tmp_path: Path) -> None:
    """transformers keeps the experts of a layer as one tensor; Megatron shares them and, under tp, each sequence among ranks."""
    needs_engine("megatron")
    report = ckptcheck.critic(live.write("qwen3-moe", tmp_path / "moe"), layouts=["tp2sp", "pp2ep2", "tp2ep2sp"])
    assert report.verdict == "clean", report.findings
    gradients = [row[5] for row in report.sections[0].rows[1:]]
    assert len(gradients) == 3
    assert max(gradients) < 1e-4
    with pytest.raises(CkptcheckError, match="only if sequence parallelism is on"):
        ckptcheck.critic(tmp_path / "moe", layouts="tp2")
    with pytest.raises(CkptcheckError, match="15 tokens"):
        ckptcheck.critic(tmp_path / "moe", layouts="tp2sp", length=15)
