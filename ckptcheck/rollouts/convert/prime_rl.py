"""prime-rl's token exports (`enable_token_export`): ``token_exports/step_N/rank_R.jsonl``, a sequence a line.

`token_ids`, `loss_mask`, `inference_logprobs`, `trainer_logprobs`, all as long as the sequence and aligned with the token that
they are of; null where a number was not finite. Source: PrimeIntellect-ai/prime-rl src/prime_rl/trainer/rl/token_export.py
at 004274e, SCHEMA_VERSION 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckptcheck.rollouts.build import Rollout
from ckptcheck.rollouts.metadata import Metadata, Side


def is_export(content: Any) -> bool:
    """Whether these lines are token exports."""
    first = content[0] if content else None
    return isinstance(first, dict) and {"token_ids", "loss_mask", "inference_logprobs"} <= first.keys()


def export(content: Any) -> tuple[list[Rollout], Metadata]:
    """Take over the sequences. What comes before the first token that is trained on is the prompt."""
    first = content[0]
    step = first.get("export_step", first.get("step"))
    about = Metadata(
        step=step if isinstance(step, int) else None,
        engine=Side("vllm"),
        trainer=Side("prime-rl"),
        source=f"prime-rl token export, schema {first.get('schema_version')}",
    )
    return [_line(line) for line in content], about


def _line(line: Mapping[str, Any]) -> Rollout:
    mask = [bool(value) for value in line["loss_mask"]]
    rewards = [value for value in line.get("rewards") or () if value is not None]
    return Rollout(
        tokens=line["token_ids"],
        prompt=min(mask.index(True) if any(mask) else len(mask), len(line["token_ids"])),
        engine=line["inference_logprobs"],
        trainer=line.get("trainer_logprobs"),
        mask=mask,
        reward=float(rewards[0]) if rewards else None,
    )
