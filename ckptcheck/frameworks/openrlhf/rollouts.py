"""Converts OpenRLHF's experiences: ``torch.save(vars(experience), FILE)``, a list of such dictionaries, or the objects themselves.

OpenRLHF writes no file that holds tokens. An `Experience` has `sequences` and `attention_mask` [B, T]; `action_mask`,
`rollout_log_probs` (the engine's), `action_log_probs` (the trainer's), `base_action_log_probs` (the reference model's) and
`advantages` are [B, T - 1], and column t is about token t + 1. Source: OpenRLHF openrlhf/trainer/ppo_utils/experience.py,
samples_generator.py and models/actor.py at 3c3be62, and openrlhf 0.11.2 of PyPI.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckptcheck.checkpoint.unpickle import ObjectStub
from ckptcheck.rollouts.build import Rollout, UnusableSequence
from ckptcheck.rollouts.convert.format import RolloutFormat
from ckptcheck.rollouts.convert.padded import PaddedBatch, read_advantages, read_rewards, require_table, widen
from ckptcheck.rollouts.metadata import Metadata, ScorerInfo

CLASS = "openrlhf.trainer.ppo_utils.experience.Experience"
SIDES = {"engine": "rollout_log_probs", "trainer": "action_log_probs", "reference": "base_action_log_probs"}


def is_experience(content: Any) -> bool:
    """Whether a pickle holds experiences."""
    return any(_fields(entry) is not None for entry in _entries(content)[:1])


def experience(content: Any) -> tuple[list[Rollout | UnusableSequence], Metadata]:
    """Convert experiences and remove the padding."""
    batches = []
    for entry in _entries(content):
        fields = _fields(entry)
        if fields is None:
            raise UnusableSequence("one of its entries is no experience")
        batches.append(_to_batch(fields))
    metadata = Metadata(
        engine=ScorerInfo("vllm"),
        trainer=ScorerInfo("openrlhf") if all("trainer" in batch.logprobs for batch in batches) else None,
        source="OpenRLHF Experience",
    )
    return [rollout for batch in batches for rollout in batch.to_rollouts()], metadata


def _entries(content: Any) -> list[Any]:
    return list(content) if isinstance(content, (list, tuple)) else [content]


def _fields(entry: Any) -> Mapping[str, Any] | None:
    """Return the fields of an experience; None for anything else."""
    if isinstance(entry, ObjectStub):
        entry = entry.state if entry.name == CLASS else None
    is_fields = isinstance(entry, Mapping) and {"sequences", "attention_mask", "action_mask"} <= entry.keys()
    return entry if is_fields else None


def _to_batch(fields: Mapping[str, Any]) -> PaddedBatch:
    ids = require_table(fields, "sequences")
    shape, due = (len(ids), ids.shape[1]), (len(ids), max(0, ids.shape[1] - 1))
    trained = widen(fields, "action_mask", shape, due, 1) != 0
    return PaddedBatch(
        ids=ids,
        is_token=require_table(fields, "attention_mask", ids.shape) != 0,
        is_response=trained,
        mask=trained,
        logprobs={
            side: widen(fields, name, shape, due, 1) for side, name in SIDES.items() if fields.get(name) is not None
        },
        rewards=read_rewards(fields, ("scores", "rewards"), len(ids)),
        advantages=read_advantages(fields, shape, due, 1),
        truncated=read_rewards(fields, ("truncated",), len(ids)),
    )


FORMATS = (RolloutFormat("openrlhf", is_experience, experience),)
