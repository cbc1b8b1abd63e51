"""Records of expert routing that a real model with experts makes are clean, and every fault put into one is named."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from ckptcheck.linter.rule_loader import load_rules
from ckptcheck.linter.runner import run_rules
from ckptcheck.rollouts import Metadata, Rollout, build_rollouts
from ckptcheck.rollouts.rollout_evidence import RolloutEvidence
from ckptcheck.rollouts.sampling_checkpoint import ExpertLayout, read_expert_layout
from tests.factories.rollout_cases import FakeCheckpoint
from tests.paths import FIXTURES

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CODES = ("PAR065", "PAR069")
LAYERS, EXPERTS, CHOICES, LENGTH, SEQUENCES = 6, 16, 4, 80, 6
LAYOUT = ExpertLayout(EXPERTS, CHOICES, LAYERS, tuple(range(LAYERS)), 0)
Change = Callable[[list[NDArray[np.int16]]], None]


@cache
def route() -> tuple[list[list[int]], list[NDArray[np.int16]]]:
    """Return sequences, and the experts of all their tokens but the last, int16 [tokens - 1, layers, choices].

    Half of the sequences share a prompt, as the samples of one group do, and one of them loops.
    """
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, moe_intermediate_size=16, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=EXPERTS, num_experts_per_tok=CHOICES,
        tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.Qwen3MoeForCausalLM(config).eval()
    draw = np.random.default_rng(0)
    prompt = draw.integers(0, 128, 20).tolist()
    sequences = [(prompt if number % 2 else []) + draw.integers(0, 128, 80).tolist() for number in range(SEQUENCES)]
    sequences = [sequence[:LENGTH] for sequence in sequences]
    sequences[1] = [*sequences[1][:40], *([7, 8, 9] * 20)][:LENGTH]
    with torch.no_grad():
        routers = [model(torch.tensor([tokens]), output_router_logits=True).router_logits for tokens in sequences]
    rows = [torch.stack([logits.topk(CHOICES, -1).indices for logits in layers], 1).numpy() for layers in routers]
    return sequences, [each[:-1].astype(np.int16) for each in rows]


def judge(change: Change | None = None, layout: ExpertLayout | None = LAYOUT) -> dict[str, str]:
    """Return code → message of the findings on the record after a change."""
    sequences, rows = route()
    rows = [each.copy() for each in rows]
    if change is not None:
        change(rows)
    made = [
        Rollout(
            tokens, 20, engine=[-0.5] * 60, versions=["3"] * 30 + ["4"] * 30, engine_routing=each
        )
        for tokens, each in zip(sequences, rows, strict=True)
    ]  # fmt: skip
    drawn_by = None if layout is None else FakeCheckpoint(layout)
    evidence = RolloutEvidence("step0.safetensors", build_rollouts(made, Metadata()), drawn_by=drawn_by)
    report = run_rules(evidence, [rule for rule in load_rules() if rule.code in CODES])
    return {finding.code: finding.message for finding in report.findings}


@pytest.mark.parametrize("layout", [LAYOUT, None])
def test_real_record(layout: ExpertLayout | None) -> None:
    assert judge(layout=layout) == {}


def _repeat_row(rows: list[NDArray[np.int16]]) -> None:
    rows[0][30:34] = rows[0][29]


def _keep_rows_of_another_request(rows: list[NDArray[np.int16]]) -> None:
    rows[2][25:40] = rows[0][40:55]


def _append_again(rows: list[NDArray[np.int16]]) -> None:
    rows[4][50:] = rows[4][:29]


def _wrap_int8(rows: list[NDArray[np.int16]]) -> None:
    rows[3][10, 2, 1] = -56


def _name_shared_expert(rows: list[NDArray[np.int16]]) -> None:
    rows[3][:, :, 3] = EXPERTS


def _lose_prompt(rows: list[NDArray[np.int16]]) -> None:
    rows[3][:20] = 0


def _lose_turn_boundary(rows: list[NDArray[np.int16]]) -> None:
    rows[3][41] = 0


def _lose_stage(rows: list[NDArray[np.int16]]) -> None:
    for each in rows:
        each[:, 3:] = 0


def _miss_after_update(rows: list[NDArray[np.int16]]) -> None:
    rows[2][50:] = -1


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (_repeat_row, "PAR065", "the experts of token 29 stand for tokens 30 to 33 too"),
        (
            _keep_rows_of_another_request,
            "PAR065",
            "the 15 rows from token 25 on are those from token 40 of sequence 0 on, although the tokens are others",
        ),
        (
            _append_again,
            "PAR065",
            "the 29 rows from token 50 on are those from token 0 on, although the tokens are others",
        ),
        (_wrap_int8, "PAR065", "1 of 474 rows in 1 sequence has a negative id: -56 (an int8 holds 200 so)"),
        (_name_shared_expert, "PAR065", "79 of 474 rows in 1 sequence have expert 16 of a model with 16 (0 to 15)"),
        (_lose_prompt, "PAR065", "20 of 474 rows in 1 sequence are zeros in all layers: nothing was recorded"),
        (_lose_turn_boundary, "PAR065", "1 of 474 rows in 1 sequence is zeros in all layers: nothing was recorded"),
        (_lose_stage, "PAR069", "layers 3-5 have experts, and the record names none but 0 there"),
        (
            _miss_after_update,
            "PAR065",
            "29 of 474 rows in 1 sequence name no experts (-1)",
        ),
    ],
)  # fmt: skip
def test_fault(change: Change, code: str, message: str) -> None:
    assert judge(change) == {code: message}


def test_layout_of_checkpoint() -> None:
    from ckptcheck.checkpoint.open import open_checkpoint

    folder = FIXTURES / "checkpoints"
    layouts = [read_expert_layout(open_checkpoint(str(folder / name))) for name in ("tiny-qwen3-moe", "tiny-deepseek")]
    assert layouts[0] == ExpertLayout(4, 2, 3, (1, 2), 0)
    assert layouts[1] is not None
    assert 0 not in layouts[1].routed_layers
    assert read_expert_layout(open_checkpoint(str(folder / "tiny-llama"))) is None
