"""One ragged batch, written as each framework lays it out, has the same numbers everywhere: those of a loop over its tokens."""

from __future__ import annotations

import json
import pickle
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptcheck
from ckptcheck.rollouts import write_rollouts
from ckptcheck.rollouts.convert import convert
from ckptcheck.rollouts.metrics import compute_metrics

FAR = 7.0
"""Noise where nothing is trained: whoever takes a wrong column sees it."""


@dataclass
class Sequence:
    prompt: list[int]
    response: list[int]
    mask: list[int]
    """Of the response; its first token is trained."""
    engine: list[float]
    trainer: list[float]
    """Of the response."""

    @property
    def advantages(self) -> list[float]:
        """Of the response: twice the engine's logprobs, so that a wrong column shows."""
        return [2 * value for value in self.engine]


def draw(seed: int, noise: float = 0.1) -> list[Sequence]:
    random = np.random.default_rng(seed)
    found = []
    for _ in range(6):
        prompt, response = int(random.integers(1, 7)), int(random.integers(1, 12))
        mask = (random.random(response) > 0.3).astype(int)
        mask[0] = 1
        engine = -random.exponential(1, response)
        trainer = np.where(mask, engine + noise * random.standard_normal(response), engine - FAR)
        ids = random.integers(5, 90, prompt + response).tolist()
        found.append(Sequence(ids[:prompt], ids[prompt:], mask.tolist(), engine.tolist(), trainer.tolist()))
    return found


def padded(rows: list[list[Any]], side: str, width: int | None = None, fill: float = 0) -> np.ndarray[Any, Any]:
    """Return rows of different lengths as a table. side: where the padding is."""
    width = max(map(len, rows)) if width is None else width
    space = [[fill] * (width - len(row)) for row in rows]
    return np.array([gap + row if side == "left" else row + gap for row, gap in zip(rows, space, strict=True)])


def columns(batch: list[Sequence], side: str, fill: float = -9.0) -> dict[str, np.ndarray[Any, Any]]:
    """Return tables of the responses; what is padding is noise."""
    return {
        "mask": padded([each.mask for each in batch], side),
        "present": padded([[1] * len(each.mask) for each in batch], side),
        "engine": padded([each.engine for each in batch], side, fill=fill).astype(np.float32),
        "trainer": padded([each.trainer for each in batch], side, fill=fill / 2).astype(np.float32),
    }


def whole(batch: list[Sequence], side: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return tables of whole sequences; column t is about token t."""
    prompts = [[0] * len(each.prompt) for each in batch]
    return {
        "ids": padded([each.prompt + each.response for each in batch], side),
        "present": padded([[1] * len(each.prompt + each.response) for each in batch], side),
        "mask": padded([no + each.mask for no, each in zip(prompts, batch, strict=True)], side),
        "engine": padded([no + each.engine for no, each in zip(prompts, batch, strict=True)], side).astype(np.float32),
        "trainer": padded([no + each.trainer for no, each in zip(prompts, batch, strict=True)], side).astype(
            np.float32
        ),
    }


PROTOCOLS = {0: 4}
"""The protocol of the pickles: 4 is the default up to Python 3.13, 5 since 3.14."""


def dump(path: Path, content: Any) -> Path:
    path.write_bytes(pickle.dumps(content, PROTOCOLS[0]))
    return path


def lines(path: Path, contents: list[Any]) -> Path:
    path.write_text("".join(json.dumps(content) + "\n" for content in contents))
    return path


def verl(batch: list[Sequence], folder: Path) -> Path:
    part, prompts = columns(batch, "right"), [each.prompt for each in batch]
    present = np.concatenate([padded([[1] * len(prompt) for prompt in prompts], "left"), part["present"]], 1)
    tables = {
        "prompts": padded(prompts, "left"), "responses": padded([each.response for each in batch], "right"),
        "attention_mask": present, "response_mask": part["mask"], "rollout_log_probs": part["engine"],
        "old_log_probs": part["trainer"], "advantages": 2 * part["engine"],
    }  # fmt: skip
    return dump(folder / "batch.pkl", tables)


def roll(batch: list[Sequence], folder: Path) -> Path:
    table = whole(batch, "right")
    tables = {
        "input_ids": table["ids"], "attention_mask": table["present"], "response_mask": table["mask"],
        "infer_logprobs": table["engine"][:, 1:], "old_log_probs": table["trainer"][:, 1:],
        "advantages": 2 * table["engine"][:, 1:],
    }  # fmt: skip
    return dump(folder / "batch.pkl", tables)


def slime(batch: list[Sequence], folder: Path) -> Path:
    samples = [
        {
            "tokens": each.prompt + each.response, "response_lengths": len(each.response), "loss_masks": each.mask,
            "rollout_log_probs": each.engine, "log_probs": each.trainer, "rollout_position": place,
            "advantages": each.advantages,
        }
        for place, each in enumerate(batch)
    ]  # fmt: skip
    return dump(folder / "0.pt", {"format_version": 2, "rollout_id": 0, "rank": 0, "samples": samples, "dp_shards": []})


def slime_of_one_rank(batch: list[Sequence], folder: Path) -> Path:
    data = {
        "tokens": [each.prompt + each.response for each in batch], "response_lengths": [len(each.response) for each in batch],
        "loss_masks": [each.mask for each in batch], "rollout_log_probs": [each.engine for each in batch],
        "log_probs": [each.trainer for each in batch], "raw_reward": [1.0] * 99,
        "advantages": [each.advantages for each in batch],
    }  # fmt: skip
    return dump(folder / "0.pt", {"rollout_id": 0, "rank": 0, "rollout_data": data})


def nemo_rl(batch: list[Sequence], folder: Path) -> Path:
    table = whole(batch, "right")
    written = [
        {
            "token_ids": [table["ids"][row].tolist()], "token_loss_mask": [table["mask"][row].tolist()],
            "generation_logprobs": [table["engine"][row].tolist()], "prev_logprobs": [table["trainer"][row].tolist()],
            "input_lengths": [len(each.prompt + each.response)], "sample_loss_mask": [1.0], "rewards": [0.0], "idx": row,
            "advantages": [(2 * table["engine"][row]).tolist()],
        }
        for row, each in enumerate(batch)
    ]  # fmt: skip
    return lines(folder / "train_data_step1.jsonl", written)


def prime_rl(batch: list[Sequence], folder: Path) -> Path:
    written = [
        {
            "schema_version": 1, "step": 0, "token_ids": each.prompt + each.response,
            "loss_mask": [False] * len(each.prompt) + [bool(flag) for flag in each.mask],
            "inference_logprobs": [0.0] * len(each.prompt) + each.engine,
            "trainer_logprobs": [0.0] * len(each.prompt) + each.trainer,
            "advantages": [0.0] * len(each.prompt) + each.advantages,
        }
        for each in batch
    ]  # fmt: skip
    return lines(folder / "rank_0.jsonl", written)


def trl(batch: list[Sequence], folder: Path) -> Path:
    part, prompts = columns(batch, "right"), [each.prompt for each in batch]
    tables = {
        "prompt_ids": padded(prompts, "left"), "prompt_mask": padded([[1] * len(prompt) for prompt in prompts], "left"),
        "completion_ids": padded([each.response for each in batch], "right"), "completion_mask": part["present"],
        "tool_mask": part["mask"], "sampling_per_token_logps": part["engine"], "old_per_token_logps": part["trainer"],
        "advantages": 2 * part["engine"],
    }  # fmt: skip
    return dump(folder / "batch.pkl", tables)


def openrlhf(batch: list[Sequence], folder: Path) -> Path:
    entries = []
    for half in (batch[:2], batch[2:]):
        table = whole(half, "right")
        entries.append(
            {
                "sequences": table["ids"], "attention_mask": table["present"], "action_mask": table["mask"][:, 1:] != 0,
                "rollout_log_probs": table["engine"][:, 1:], "action_log_probs": table["trainer"][:, 1:], "info": {},
                "advantages": 2 * table["engine"][:, 1:],
            }
        )  # fmt: skip
    return dump(folder / "experiences.pkl", entries)


def areal(batch: list[Sequence], folder: Path) -> Path:
    entries = []
    for each in batch:
        table = whole([each], "right")
        entries.append(
            {
                "input_ids": table["ids"], "attention_mask": table["present"] != 0, "loss_mask": table["mask"],
                "logprobs": table["engine"], "versions": table["mask"] * 4 - 1, "prox_logp": np.roll(table["trainer"], -1, 1),
            }
        )  # fmt: skip
    return dump(folder / "trajectories.pkl", entries)


def areal_with_advantages(batch: list[Sequence], folder: Path) -> Path:
    """`compute_advantages` moves what it finds by a token."""
    entries = []
    for each in batch:
        table = whole([each], "right")
        moved = {name: np.roll(table[name], -1, 1) for name in ("mask", "engine", "trainer")}
        entries.append(
            {
                "input_ids": table["ids"], "attention_mask": table["present"] != 0, "loss_mask": moved["mask"],
                "logprobs": moved["engine"], "versions": table["mask"] * 4 - 1, "prox_logp": moved["trainer"],
                "advantages": 2 * moved["engine"],
            }
        )  # fmt: skip
    return dump(folder / "trajectories.pkl", entries)


class GRPOBatch:
    """Pickles as ms-swift's does."""


GRPOBatch.__module__ = "swift.rl_core.data"


def ms_swift(batch: list[Sequence], folder: Path, *, is_rolled: bool = False) -> Path:
    entries = []
    for half in (batch[:2], batch[2:]):
        table = whole(half, "right")
        kept = table["ids"].shape[1] - min(len(each.prompt) for each in half)
        fields = {name: table[name] for name in ("mask", "engine", "trainer")}
        fields = {name: np.roll(values, -1, 1) if is_rolled else values[:, -kept:] for name, values in fields.items()}
        signals = GRPOBatch()
        signals.__dict__ |= {
            "completion_mask": fields["mask"] != 0, "truncated_mask": np.arange(len(half)) == 1, "seq_lengths": None,
            "old_per_token_logps": fields["trainer"], "ref_per_token_logps": None, "advantages": 2 * fields["engine"],
            "rollout_per_token_logps": fields["engine"], "logits_to_keep": None if is_rolled else kept,
        }  # fmt: skip
        inputs = {"input_ids": table["ids"], "attention_mask": table["present"]}
        entries.append({"model_inputs": inputs, "grpo_batch": signals})
    module: Any = types.ModuleType(GRPOBatch.__module__)
    module.GRPOBatch = GRPOBatch
    with pytest.MonkeyPatch.context() as patch:
        for name in ("swift", "swift.rl_core", module.__name__):
            patch.setitem(sys.modules, name, module)
        return dump(folder / "inputs.pkl", entries)


def ms_swift_in_megatron(batch: list[Sequence], folder: Path) -> Path:
    return ms_swift(batch, folder, is_rolled=True)


def trl_of_unsloth(batch: list[Sequence], folder: Path) -> Path:
    """Before it scores, unsloth moves the padding of prompts behind the completions."""
    content = pickle.loads(trl(batch, folder).read_bytes())
    rows = [each.prompt + each.response for each in batch]
    width = content["prompt_ids"].shape[1] + content["completion_ids"].shape[1]
    most = max(content["prompt_ids"].shape[1] - len(each.prompt) for each in batch)
    kept = content["completion_ids"].shape[1] + most
    trainer = padded([[-FAR] * len(each.prompt) + each.trainer for each in batch], "right", width)[:, -kept:]
    assert all(len(row) <= width for row in rows)
    extra = {"old_per_token_logps": trainer.astype(np.float32), "max_left_pad": np.full((len(batch), 1), most)}
    return dump(folder / "batch.pkl", content | extra)


WRITERS: list[Callable[[list[Sequence], Path], Path]] = [
    verl, roll, slime, slime_of_one_rank, nemo_rl, prime_rl, trl, openrlhf, areal, areal_with_advantages,
    ms_swift, ms_swift_in_megatron, trl_of_unsloth,
]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_a_format_has_the_numbers_of_the_tokens(
    write: Callable[[list[Sequence], Path], Path], seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = draw(seed)
    monkeypatch.setitem(PROTOCOLS, 0, 2 + seed)
    rollouts, kind = convert([write(batch, tmp_path)])
    assert write.__name__.startswith(kind.replace("-", "_").removesuffix("_train"))
    assert rollouts.metadata.left_out == []
    assert rollouts.tokens.tolist() == [token for each in batch for token in each.prompt + each.response]
    assert rollouts.prompt_lengths.tolist() == [len(each.prompt) for each in batch]
    if write is not areal:
        (block,) = rollouts.blocks()
        advantages = [value for each in batch for value in [0.0] * len(each.prompt) + each.advantages]
        assert rollouts.columns["advantages"][block.mask] == pytest.approx(np.array(advantages)[block.mask], rel=1e-6)
    found = compute_metrics(rollouts)
    assert found is not None
    pairs = [
        [(q, p) for q, p, used in zip(each.engine, each.trainer, each.mask, strict=True) if used] for each in batch
    ]
    gaps = [p - q for sequence in pairs for q, p in sequence]
    number = len(gaps)
    assert (found.tokens, found.broken, found.sequences) == (number, 0, len(batch))
    expected = {
        "mult_prob_error": sum(exp(abs(r)) for r in gaps) / number,
        "k1": -sum(gaps) / number,
        "k2": sum(r * r for r in gaps) / 2 / number,
        "k3": sum(exp(r) - 1 - r for r in gaps) / number,
        "ratio": sum(map(exp, gaps)) / number,
        "clipped_low": sum(r < log(0.8) for r in gaps) / number,
        "clipped_high": sum(r > log(1.2) for r in gaps) / number,
        "abs_mean": sum(map(abs, gaps)) / number,
        "abs_sequence_mean": sum(
            sum(abs(p - q) for q, p in sequence) / len(sequence) for sequence in pairs
        ) / len(pairs),
        "prob_diff_mean": sum(abs(exp(q) - exp(p)) for sequence in pairs for q, p in sequence) / number,
        "engine_mean": sum(q for sequence in pairs for q, _ in sequence) / number,
    }  # fmt: skip
    for name, value in expected.items():
        assert found.numbers()[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    assert found.abs_max < 1.0


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_a_sound_batch_is_clean(write: Callable[[list[Sequence], Path], Path], tmp_path: Path) -> None:
    rollouts, _ = convert([write(draw(0, noise=0.005), tmp_path)])
    write_rollouts(rollouts, tmp_path / "step.safetensors")
    report = ckptcheck.judge(tmp_path / "step.safetensors")
    assert (report.verdict, report.findings) == ("clean", ())
