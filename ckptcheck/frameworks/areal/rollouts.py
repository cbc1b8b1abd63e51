"""Converts AReaL's trajectories: ``torch.save(rollout_batch, FILE)``, one dictionary of tensors or a list of them.

AReaL's own dumps of trajectories hold texts. A trajectory has `input_ids`, `attention_mask`, `loss_mask`, `logprobs` (the
engine's) and `versions`, all [B, S] and about token t; `prox_logp` (the trainer's) and `ref_logp` are [B, S], and column t is
about token t + 1. `compute_advantages` adds `advantages`, laid out so, moves `logprobs` and `loss_mask` by one place too, and may
overwrite `logprobs` with `prox_logp`. Source: inclusionAI/AReaL areal/workflow/rlvr.py, areal/trainer/ppo/actor.py,
areal/infra/workflow_executor.py at 4aef98d, and areal 1.0.4 of PyPI.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ckptcheck.rollouts.build import Rollout, UnusableSequence
from ckptcheck.rollouts.convert.format import RolloutFormat, TextDump
from ckptcheck.rollouts.convert.padded import PaddedBatch, read_rewards, require_table, widen
from ckptcheck.rollouts.metadata import Metadata, ScorerInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEYS = {"input_ids", "attention_mask", "loss_mask", "logprobs", "versions"}
TEXT_KEYS = {"task_id", "head_version", "tail_version", "prompt", "completion"}
SIDES = {"engine": "logprobs", "trainer": "prox_logp", "reference": "ref_logp"}


def is_trajectory(content: Any) -> bool:
    """Whether a pickle holds trajectories."""
    return any(isinstance(entry, Mapping) and entry.keys() >= KEYS for entry in _entries(content)[:1])


def is_text_dump(content: Any) -> bool:
    """Whether these lines are a dump of trajectories: texts, without tokens."""
    first = next((line for line in content if isinstance(line, dict)), {})
    return first.keys() >= TEXT_KEYS


def trajectory(content: Any) -> tuple[list[Rollout | UnusableSequence], Metadata]:
    """Convert trajectories and remove the padding."""
    batches = [_to_batch(entry) for entry in _entries(content)]
    metadata = Metadata(
        trainer=ScorerInfo("areal") if all("trainer" in batch.logprobs for batch in batches) else None,
        source="AReaL trajectories",
    )
    return [rollout for batch in batches for rollout in batch.to_rollouts()], metadata


def _entries(content: Any) -> list[Any]:
    return list(content) if isinstance(content, (list, tuple)) else [content]


def _to_batch(fields: Mapping[str, Any]) -> PaddedBatch:
    ids = require_table(fields, "input_ids")
    shape = (len(ids), ids.shape[1])
    about_next = {"prox_logp", "ref_logp", "advantages"} | (
        {"logprobs", "loss_mask"} if "advantages" in fields else set()
    )

    def of_tokens(name: str) -> NDArray[Any]:
        values = widen(fields, name, shape, shape, 0)
        if name not in about_next:
            return values
        return widen({name: values[:, :-1]}, name, shape, (shape[0], shape[1] - 1), 1) if shape[1] else values

    trained = of_tokens("loss_mask") != 0
    return PaddedBatch(
        ids=ids,
        is_token=require_table(fields, "attention_mask", ids.shape) != 0,
        is_response=trained,
        mask=trained,
        logprobs={side: of_tokens(name) for side, name in SIDES.items() if fields.get(name) is not None},
        rewards=read_rewards(fields, ("rewards",), len(ids)),
        advantages=of_tokens("advantages") if fields.get("advantages") is not None else None,
        versions=require_table(fields, "versions", ids.shape),
    )


FORMATS = (RolloutFormat("areal", is_trajectory, trajectory),)
TEXT_DUMPS = (
    TextDump("AReaL", is_text_dump, "save the trajectories: torch.save(rollout_batch, PATH), after compute_logp"),
)
