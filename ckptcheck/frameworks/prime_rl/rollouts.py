"""Converts prime-rl's token exports (`enable_token_export`): ``token_exports/step_N/rank_R.jsonl``, one sequence a line.

A line holds `token_ids`, `loss_mask`, `inference_logprobs`, `trainer_logprobs` and `advantages`: lists as long as the sequence, in
which entry i is about token i; null stands for a number that was not finite. Source: PrimeIntellect-ai/prime-rl
src/prime_rl/trainer/rl/token_export.py at 004274e, SCHEMA_VERSION 1.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ckptcheck.rollouts.build import Rollout, UnusableSequence
from ckptcheck.rollouts.convert.format import RolloutFormat
from ckptcheck.rollouts.convert.reading import as_int, read_each
from ckptcheck.rollouts.json_text import WrongType, convert_json, to_printable
from ckptcheck.rollouts.metadata import Metadata, ScorerInfo

SCHEMA = "1"


class Line(msgspec.Struct):
    """The fields of a sequence's line that the converter reads."""

    token_ids: list[int]
    loss_mask: list[bool]
    inference_logprobs: list[float | None]
    trainer_logprobs: list[float | None] | None = None
    rewards: list[float | None] | None = None
    advantages: list[float | None] | None = None


def is_export(content: Any) -> bool:
    """Whether these lines are token exports."""
    return any(_is_sequence(line) for line in content)


def _is_sequence(line: Any) -> bool:
    return isinstance(line, dict) and {"token_ids", "loss_mask", "inference_logprobs"} <= line.keys()


def export(content: Any) -> tuple[list[Rollout | UnusableSequence], Metadata]:
    """Convert the sequences. The tokens before the first trained token are the prompt."""
    lines = [line for line in content if _is_sequence(line)]
    first: dict[str, Any] = lines[0] if lines else {}
    for noun, key in (("schema", "schema_version"), ("step", "export_step"), ("step", "step")):
        values = dict.fromkeys(to_printable(line.get(key))[:20] for line in lines if line.get(key) is not None)
        if len(values) > 1:
            raise UnusableSequence(f"it holds lines of {noun} {' and '.join(list(values)[:2])}")
        if noun == "schema" and values and next(iter(values)) != SCHEMA:
            raise UnusableSequence(f"it is of schema {next(iter(values))}, and {SCHEMA} is the one that is known")
        if noun == "step" and values:
            break
    metadata = Metadata(
        step=as_int(first.get("export_step", first.get("step"))),
        engine=ScorerInfo("vllm"),
        trainer=ScorerInfo("prime-rl"),
        source=f"prime-rl token export, schema {to_printable(first.get('schema_version'))[:20]}",
    )
    return read_each(_to_rollout, content), metadata


def _to_rollout(content: Any) -> Rollout:
    try:
        line = convert_json(content, Line)
    except WrongType as error:
        raise UnusableSequence(str(error)) from error
    mask = line.loss_mask
    return Rollout(
        tokens=line.token_ids,
        prompt=min(mask.index(True) if any(mask) else len(mask), len(line.token_ids)),
        engine=line.inference_logprobs,
        trainer=line.trainer_logprobs,
        mask=mask,
        advantages=line.advantages if any(value is not None for value in line.advantages or ()) else None,
        reward=next((value for value in line.rewards or () if value is not None), None),
    )


FORMATS = (RolloutFormat("prime-rl", is_export, export, is_json=True),)
