"""Converts TRL's batches, and recognises its logged completions, which hold texts.

TRL writes no file that holds tokens. ``completions/completions_N.parquet`` (`log_completions`) has the columns `step`, `prompt`,
`completion`, one for each reward function, and `advantage`: texts without token ids and without logprobs. The batch that
`GRPOTrainer._generate_and_score_completions` returns has them, and ``torch.save(batch, FILE)`` keeps it: `prompt_ids` and
`prompt_mask` [B, P] padded on the left, `completion_ids` and `completion_mask` [B, C] padded on the right;
`sampling_per_token_logps` (the engine's), `old_per_token_logps` (the trainer's), `ref_per_token_logps` and `tool_mask` (0 for the
tokens of tools) are [B, C]; `advantages` are [B], or [B, C] of subclasses.

unsloth replaces parts of this trainer, and logs the same completions. It moves padding of prompts to the end before it scores, so
that its logprobs of trainer and reference are [B, C + max_left_pad]: unsloth/models/rl_replacements.py at 015bdef, unsloth_zoo
`create_completion_attention_mask` at ce232d6. vLLM gives processed logprobs. Source: huggingface/trl
trl/trainer/grpo_trainer.py and trl/generation/vllm_generation.py at f2cd577, and trl 1.16.0 of PyPI.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ckptcheck.rollouts.build import Rollout, UnusableSequence
from ckptcheck.rollouts.convert.format import RolloutFormat, TextDump
from ckptcheck.rollouts.convert.padded import PaddedBatch, read_advantages, require_table, widen
from ckptcheck.rollouts.metadata import Metadata, ScorerInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEYS = {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask"}
TEXT_KEYS = frozenset(("step", "prompt", "completion", "advantage"))
SIDES = {
    "engine": "sampling_per_token_logps",
    "trainer": "old_per_token_logps",
    "reference": "ref_per_token_logps",
}


def is_batch(content: Any) -> bool:
    """Whether a pickle holds a batch."""
    return isinstance(content, Mapping) and content.keys() >= KEYS


def is_text_dump(content: Any) -> bool:
    """Whether these lines are logged completions: texts, without tokens."""
    first = next((line for line in content if isinstance(line, dict)), {})
    return first.keys() >= TEXT_KEYS and "prompt_ids" not in first


def batch(content: Mapping[str, Any]) -> tuple[list[Rollout | UnusableSequence], Metadata]:
    """Convert a batch and remove the padding."""
    import numpy as np

    prompts, completions = require_table(content, "prompt_ids"), require_table(content, "completion_ids")
    if len(prompts) != len(completions):
        raise UnusableSequence(f"there are {len(prompts):,} prompts and {len(completions):,} completions")
    width = prompts.shape[1]
    due = (len(completions), completions.shape[1])
    shape = (len(completions), width + due[1])
    masks = [
        require_table(content, name, table.shape) != 0
        for name, table in (("prompt_mask", prompts), ("completion_mask", completions))
    ]

    def of_tokens(name: str) -> NDArray[Any]:
        return widen(content, name, shape, due, width)

    def logprobs_of(name: str) -> NDArray[Any]:
        return widen({name: _unpack_left(content[name], masks[0], due)}, name, shape, due, width)

    trained = of_tokens("completion_mask") != 0
    if content.get("tool_mask") is not None:
        trained &= of_tokens("tool_mask") != 0
    found = PaddedBatch(
        ids=np.concatenate([prompts, completions], 1),
        is_token=np.concatenate(masks, 1),
        is_response=np.arange(shape[1])[None, :].repeat(len(completions), 0) >= width,
        mask=trained,
        logprobs={side: logprobs_of(name) for side, name in SIDES.items() if content.get(name) is not None},
        advantages=read_advantages(content, shape, due, width),
    )
    is_sampled = content.get(SIDES["engine"]) is not None
    metadata = Metadata(
        engine=ScorerInfo("vllm") if is_sampled else None,
        logprobs="processed" if is_sampled else "unknown",
        trainer=ScorerInfo("unsloth" if "max_left_pad" in content else "trl")
        if content.get(SIDES["trainer"]) is not None
        else None,
        source="TRL batch",
    )
    return found.to_rollouts(), metadata


def _unpack_left(values: Any, prompt_mask: NDArray[Any], due: tuple[int, int]) -> Any:
    """Return logprobs [B, C] of completions out of unsloth's, which also cover the ends of longer prompts; others as they are.

    values: [B, C + p], where p is the most padding of a prompt. A row begins p less its own padding before its completion.
    """
    import numpy as np

    padding = (~prompt_mask).sum(1)
    most = int(padding.max(initial=0))
    if not most or np.shape(values) != (due[0], due[1] + most):
        return values
    columns = most - padding[:, None] + np.arange(due[1])
    return np.take_along_axis(values, columns, 1)


FORMATS = (RolloutFormat("trl", is_batch, batch),)
TEXT_DUMPS = (
    TextDump(
        "TRL",
        is_text_dump,
        "save the batch: torch.save(batch, PATH), of what GRPOTrainer._generate_and_score_completions returns",
    ),
)
