"""prime-rl's token exports (`enable_token_export`): ``token_exports/step_N/rank_R.jsonl``, a sequence a line.

`token_ids`, `loss_mask`, `inference_logprobs`, `trainer_logprobs`, all as long as the sequence and aligned with the token that
they are of; null where a number was not finite. Source: PrimeIntellect-ai/prime-rl src/prime_rl/trainer/rl/token_export.py
at 004274e, SCHEMA_VERSION 1.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ckptcheck.rollouts.build import Misfit, Rollout
from ckptcheck.rollouts.convert.reading import each, whole
from ckptcheck.rollouts.json_text import Unlike, converted, word
from ckptcheck.rollouts.metadata import Metadata, Side

SCHEMA = "1"


class Line(msgspec.Struct):
    """A sequence, as far as it is looked at."""

    token_ids: list[int]
    loss_mask: list[bool]
    inference_logprobs: list[float | None]
    trainer_logprobs: list[float | None] | None = None
    rewards: list[float | None] | None = None


def is_export(content: Any) -> bool:
    """Whether these lines are token exports."""
    return any(_named(line) for line in content)


def _named(line: Any) -> bool:
    return isinstance(line, dict) and {"token_ids", "loss_mask", "inference_logprobs"} <= line.keys()


def export(content: Any) -> tuple[list[Rollout | Misfit], Metadata]:
    """Take over the sequences. What comes before the first token that is trained on is the prompt."""
    lines = [line for line in content if _named(line)]
    first: dict[str, Any] = lines[0] if lines else {}
    for what, told in (("schema", "schema_version"), ("step", "export_step"), ("step", "step")):
        said = dict.fromkeys(word(line.get(told))[:20] for line in lines if line.get(told) is not None)
        if len(said) > 1:
            raise Misfit(f"it holds lines of {what} {' and '.join(list(said)[:2])}")
        if what == "schema" and said and next(iter(said)) != SCHEMA:
            raise Misfit(f"it is of schema {next(iter(said))}, and {SCHEMA} is the one that is known")
        if what == "step" and said:
            break
    about = Metadata(
        step=whole(first.get("export_step", first.get("step"))),
        engine=Side("vllm"),
        trainer=Side("prime-rl"),
        source=f"prime-rl token export, schema {word(first.get('schema_version'))[:20]}",
    )
    return each(_line, content), about


def _line(content: Any) -> Rollout:
    try:
        line = converted(content, Line)
    except Unlike as error:
        raise Misfit(str(error)) from error
    mask = line.loss_mask
    return Rollout(
        tokens=line.token_ids,
        prompt=min(mask.index(True) if any(mask) else len(mask), len(line.token_ids)),
        engine=line.inference_logprobs,
        trainer=line.trainer_logprobs,
        mask=mask,
        reward=next((value for value in line.rewards or () if value is not None), None),
    )
