"""Writes rollouts in the form that slime and miles save and load for debugging, so that a trainer can be fed with them.

``--load-debug-rollout-data`` reads `{"rollout_id", "samples": [Sample.to_dict()]}`, saved by torch. Source: THUDM/slime
slime/observability/rollout_data_utils.py and slime/utils/types.py at 624b824.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck.errors import CkptcheckError
from ckptcheck.text.file_io import open_for_replace

if TYPE_CHECKING:
    from ckptcheck.rollouts.rollouts import Rollouts

STATUS = {"length": "truncated", "truncated": "truncated", "abort": "aborted", "aborted": "aborted", "failed": "failed"}
"""Finish reason → slime's status; every other one is ``completed``."""


def write_slime_file(rollouts: Rollouts, path: Path) -> None:
    """Write the file of one rollout. Raises CkptcheckError if torch is not installed or rollouts are malformed.

    Texts stay empty, because rollouts hold tokens. A missing reward is 0, since slime's trainer needs a number. The
    trainer's own logprobs and top-k distributions have no place in it.
    """
    if rollouts.defects:
        raise CkptcheckError(f"these rollouts cannot be written: {rollouts.defects[0].text}")
    try:
        import torch
    except ImportError as error:
        raise CkptcheckError(f"{path} is a file of torch, which is not installed", hint="pip install torch") from error
    samples = [_to_sample(rollouts, place) for place in range(rollouts.sequence_count)]
    for sample in samples:
        if (experts := sample.get("rollout_routed_experts")) is not None:
            sample["rollout_routed_experts"] = torch.tensor(experts)
    with open_for_replace(path) as temporary:
        torch.save({"rollout_id": rollouts.metadata.step or 0, "samples": samples}, temporary)


def _to_sample(rollouts: Rollouts, place: int) -> dict[str, Any]:
    """Return one sequence as `Sample.to_dict` has it."""
    inside, columns, metadata = rollouts.sequence(place), rollouts.columns, rollouts.metadata
    prompt = int(rollouts.prompt_lengths[place])
    tokens = rollouts.tokens[inside].tolist()
    sample: dict[str, Any] = {
        "index": place,
        "group_index": place,
        "prompt": "",
        "tokens": tokens,
        "response": "",
        "response_length": len(tokens) - prompt,
        "reward": float(columns["rewards"][place]) if "rewards" in columns else 0.0,
        "loss_mask": None,
        "weight_versions": _list_versions(rollouts, inside),
        "rollout_log_probs": None,
        "remove_sample": False,
        "status": "completed",
        "metadata": {},
    }
    if "response_mask" in columns:
        sample["loss_mask"] = [int(value != 0) for value in columns["response_mask"][inside][prompt:].tolist()]
    if "engine_logprobs" in columns:
        sample["rollout_log_probs"] = columns["engine_logprobs"][inside][prompt:].tolist()
    if "engine_routing" in columns:
        sample["rollout_routed_experts"] = columns["engine_routing"][inside][:-1]
    if "finish" in columns and 0 <= (number := int(columns["finish"][place])) < len(metadata.finish_reasons):
        sample["status"] = STATUS.get(metadata.finish_reasons[number], "completed")
    return sample


def _list_versions(rollouts: Rollouts, inside: slice) -> list[str]:
    """Return the weight versions of a sequence's tokens, each once."""
    spans = rollouts.columns.get("version_spans")
    if spans is None:
        return []
    own = spans[(spans[:, 0] < inside.stop) & (spans[:, 1] > inside.start)]
    return [rollouts.metadata.versions[number] for number in dict.fromkeys(own[:, 2].tolist())]
