"""Converts NeMo-RL's record of a training step: ``train_data_stepN.jsonl`` in the logger's folder, one sequence a line.

A line has the keys of a batch of one: `token_ids`, `token_loss_mask`, `generation_logprobs` (the engine's) and `prev_logprobs`
(the trainer's), `advantages`, all padded to the batch's longest sequence, entry i about token i; `input_lengths`,
`sample_loss_mask`, `rewards`. With `use_dynamic_sampling`, `rewards` are those of the batch before it was filtered, and
`filtered_rewards` those of the sequences. NeMo-RL writes N = 1 for the first step. With `force_on_policy_ratio` it computes no
`prev_logprobs` and writes zeros. Source: NVIDIA-NeMo/RL nemo_rl/algorithms/grpo.py and utils/logger.py
(`log_batched_dict_as_jsonl`) at 7ea279a.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ckptcheck.rollouts.build import Rollout, UnusableSequence
from ckptcheck.rollouts.convert.format import RolloutFormat
from ckptcheck.rollouts.convert.reading import as_float, read_each
from ckptcheck.rollouts.metadata import Metadata, ScorerInfo

KEYS = {"token_ids", "token_loss_mask", "generation_logprobs"}
UNSCORED = "prev_logprobs are all 0, as NeMo-RL writes them with force_on_policy_ratio"
NAME = re.compile(r"_step([0-9]{1,15})\.jsonl$")


def is_step(content: Any) -> bool:
    """Whether these lines are of a training step."""
    return any(isinstance(line, dict) and line.keys() >= KEYS for line in content)


def step(content: Any) -> tuple[list[Rollout | UnusableSequence], Metadata]:
    """Convert the sequences, and remove the padding."""
    trained = any(isinstance(line, dict) and _has_trainer(line) for line in content)
    metadata = Metadata(
        trainer=ScorerInfo("nemo-rl") if trained else None,
        source="NeMo-RL train data",
        unscored={} if trained else {"trainer": UNSCORED},
    )
    return read_each(lambda line: _to_rollout(line, trained), content), metadata


def step_of_name(path: Path) -> int | None:
    """Return the step, counted from 0, in the name of a file; None without one."""
    match = NAME.search(path.name)
    return max(0, int(match[1]) - 1) if match else None


def _has_trainer(line: dict[str, Any]) -> bool:
    """Whether the trainer computed logprobs: with `force_on_policy_ratio` they are all 0."""
    values = _only(line.get("prev_logprobs"))
    return isinstance(values, list) and any(values)


def _only(value: Any) -> Any:
    """Return the one entry of a batch of one; other values as they are."""
    return value[0] if isinstance(value, list) and len(value) == 1 and not isinstance(value[0], (int, float)) else value


def _number(value: Any) -> float | None:
    return as_float(value[0] if isinstance(value, list) and len(value) == 1 else value)


def _to_rollout(line: Any, trained: bool) -> Rollout:
    if not isinstance(line, dict):
        raise UnusableSequence("it is no object")
    tokens, mask, engine, trainer, advantages = (
        _only(line[name]) if name in line else None
        for name in ("token_ids", "token_loss_mask", "generation_logprobs", "prev_logprobs", "advantages")
    )
    if tokens is None or mask is None or engine is None:
        raise UnusableSequence(f"it has no {', '.join(sorted(KEYS - line.keys())) or 'tokens'}")
    length = _number(line.get("input_lengths"))
    end = len(tokens) if length is None else int(length)
    if not 0 <= end <= len(tokens):
        raise UnusableSequence(f"its length is {end:,}, and it has {len(tokens):,} tokens")
    used = _number(line.get("sample_loss_mask")) != 0
    flags = [bool(flag) for flag in mask[:end]]
    return Rollout(
        tokens=tokens[:end],
        prompt=flags.index(True) if any(flags) else end,
        engine=engine[:end],
        trainer=trainer[:end] if trained and trainer is not None else None,
        mask=[flag and used for flag in flags],
        advantages=advantages[:end] if isinstance(advantages, list) else None,
        reward=_number(line.get("filtered_rewards", line.get("rewards"))),
    )


FORMATS = (RolloutFormat("nemo-rl", is_step, step, is_json=True, step_of_name=step_of_name),)
