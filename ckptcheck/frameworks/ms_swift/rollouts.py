"""Converts ms-swift's GRPO batches: ``torch.save(inputs, FILE)``, what `GRPOTrainer._prepare_inputs` returns, or a list of such.

ms-swift writes no file that holds tokens: ``completions.jsonl`` (`log_completions`) has texts, rewards and advantages. A batch has
`model_inputs` with `input_ids` and `attention_mask` [B, L], and a `GRPOBatch`: `completion_mask`, `rollout_per_token_logps` (the
engine's), `old_per_token_logps` (the trainer's), `ref_per_token_logps`, `advantages`, all [B, T], and `truncated_mask` [B]. vLLM
gives processed logprobs. Where `logits_to_keep` is set, they are about the last T tokens; else, in Megatron, T is L and column t
is about token t + 1. Source: modelscope/ms-swift swift/rl_core/data.py, swift/rlhf_trainers/utils.py and grpo_trainer.py at
3602360.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ckptcheck.checkpoint.unpickle import ObjectStub
from ckptcheck.rollouts.build import Rollout, UnusableSequence
from ckptcheck.rollouts.convert.format import RolloutFormat, TextDump
from ckptcheck.rollouts.convert.padded import PaddedBatch, read_advantages, require_table, widen
from ckptcheck.rollouts.metadata import Metadata, ScorerInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

CLASS = "swift.rl_core.data.GRPOBatch"
SIDES = {"engine": "rollout_per_token_logps", "trainer": "old_per_token_logps", "reference": "ref_per_token_logps"}


def is_batch(content: Any) -> bool:
    """Whether a pickle holds batches."""
    return any(
        isinstance(entry, Mapping) and {"model_inputs", "grpo_batch"} <= entry.keys() for entry in _entries(content)[:1]
    )


def is_text_dump(content: Any) -> bool:
    """Whether these lines are logged completions: a row each, or a table of lists for each step."""
    first = next((line for line in content if isinstance(line, dict)), {})
    return {"prompt", "completion"} <= first.keys() and ("gen_step" in first or isinstance(first["prompt"], list))


def batch(content: Any) -> tuple[list[Rollout | UnusableSequence], Metadata]:
    """Convert batches and remove the padding."""
    batches = [_to_batch(entry["model_inputs"], _fields(entry["grpo_batch"])) for entry in _entries(content)]
    sides = {side for found in batches for side in found.logprobs}
    metadata = Metadata(
        engine=ScorerInfo("vllm") if "engine" in sides else None,
        logprobs="processed" if "engine" in sides else "unknown",
        trainer=ScorerInfo("ms-swift") if "trainer" in sides else None,
        source="ms-swift GRPO batch",
    )
    return [rollout for found in batches for rollout in found.to_rollouts()], metadata


def _entries(content: Any) -> list[Any]:
    return list(content) if isinstance(content, (list, tuple)) else [content]


def _fields(entry: Any) -> Mapping[str, Any]:
    """Return the fields of a GRPOBatch. Raises UnusableSequence for anything else."""
    if isinstance(entry, ObjectStub):
        entry = entry.state if entry.name == CLASS else None
    if not isinstance(entry, Mapping):
        raise UnusableSequence("its grpo_batch is none")
    return entry


def _to_batch(inputs: Mapping[str, Any], fields: Mapping[str, Any]) -> PaddedBatch:
    import numpy as np

    ids, mask = require_table(inputs, "input_ids"), require_table(fields, "completion_mask")
    if len(ids) != len(mask) or mask.shape[1] > ids.shape[1]:
        raise UnusableSequence("its sequences lie end to end (padding_free), where no token's place is recorded")
    shape, due = (len(ids), ids.shape[1]), (len(mask), mask.shape[1])
    is_rolled = fields.get("logits_to_keep") is None

    def of_tokens(name: str) -> NDArray[Any]:
        values = widen(fields, name, shape, due, shape[1] - due[1])
        return np.roll(values, 1, 1) if is_rolled else values

    trained = of_tokens("completion_mask") != 0
    advantages = read_advantages(fields, shape, due, shape[1] - due[1])
    if advantages is not None and is_rolled and advantages.ndim > 1:
        advantages = np.roll(advantages, 1, 1)
    present = (
        require_table(inputs, "attention_mask", ids.shape) != 0 if "attention_mask" in inputs else np.ones(shape, bool)
    )
    return PaddedBatch(
        ids=ids,
        is_token=present,
        is_response=trained,
        mask=trained,
        logprobs={side: of_tokens(name) for side, name in SIDES.items() if fields.get(name) is not None},
        advantages=advantages,
        truncated=fields.get("truncated_mask"),
    )


FORMATS = (RolloutFormat("ms-swift", is_batch, batch),)
TEXT_DUMPS = (
    TextDump(
        "ms-swift",
        is_text_dump,
        "save the batch: torch.save(inputs, PATH), of what GRPOTrainer._prepare_inputs returns",
    ),
)
