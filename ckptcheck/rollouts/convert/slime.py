"""What slime and miles save for debugging. Both write the same, miles being a fork.

``--save-debug-rollout-data``: `{"rollout_id", "samples": [Sample.to_dict()]}`. A sample has `tokens`, `response_length`,
`loss_mask` and `rollout_log_probs` (of the response), `weight_versions` (of every call, not of every token), `status`,
`rollout_routed_experts` [tokens - 1, layers, k]. Sources: THUDM/slime slime/utils/types.py at 0d234f3, slime/ray/rollout.py;
radixark/miles miles/utils/types.py at 002ce70.

``--save-debug-train-data``: `{"rollout_id", "rank", "rollout_data": {name: [one of each sequence]}}` with `tokens`,
`response_lengths`, `loss_masks`, `rollout_log_probs`, `log_probs`, `ref_log_probs`. Source: slime/utils/train_dump_utils.py at
429eb3d.
With context parallelism a rank holds a part of each sequence's logprobs; such sequences are left out, for their lengths disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckptcheck.rollouts.build import Rollout
from ckptcheck.rollouts.metadata import Metadata, Side


def is_rollout(content: Any) -> bool:
    """Whether a file was written by --save-debug-rollout-data."""
    return isinstance(content, dict) and isinstance(content.get("samples"), list) and "rollout_id" in content


def is_train(content: Any) -> bool:
    """Whether a file was written by --save-debug-train-data."""
    return isinstance(content, dict) and isinstance(content.get("rollout_data"), dict)


def rollout(content: Any) -> tuple[list[Rollout], Metadata]:
    """Take over the samples. Groups of samples are taken apart."""
    samples = []
    for each in content["samples"]:
        samples += each if isinstance(each, list) else [each]
    return [_sample(sample) for sample in samples], _about(content, "--save-debug-rollout-data")


def _sample(sample: Mapping[str, Any]) -> Rollout:
    tokens, response = sample["tokens"], sample["response_length"]
    mask = sample.get("loss_mask")
    if sample.get("remove_sample"):
        mask = [0] * response
    reward = sample.get("reward")
    return Rollout(
        tokens=tokens,
        prompt=len(tokens) - response,
        engine=sample.get("rollout_log_probs"),
        mask=mask,
        versions=_versions(sample.get("weight_versions"), response),
        reward=float(reward) if isinstance(reward, (int, float)) else None,
        finish=str(sample.get("status") or ""),
        engine_routing=sample.get("rollout_routed_experts"),
    )


def _versions(calls: Any, response: int) -> list[str]:
    """Return a version of every token where all calls had the same: where one ends and the next begins is not kept."""
    found = {str(version) for version in calls or ()}
    return [found.pop()] * response if len(found) == 1 else []


def train(content: Any) -> tuple[list[Rollout], Metadata]:
    """Take over what one rank trained on."""
    data = content["rollout_data"]
    rollouts = []
    for number, tokens in enumerate(data["tokens"]):
        response = int(data["response_lengths"][number])

        def of(name: str, number: int = number) -> Any:
            return data[name][number] if data.get(name) is not None else None

        rollouts.append(
            Rollout(
                tokens=tokens,
                prompt=len(tokens) - response,
                engine=of("rollout_log_probs"),
                trainer=of("log_probs"),
                reference=of("ref_log_probs"),
                mask=_whole(of("loss_masks")),
                versions=_versions(of("weight_versions"), response),
                engine_routing=of("rollout_routed_experts"),
            )
        )
    return rollouts, _about(content, "--save-debug-train-data")


def _whole(mask: Any) -> Any:
    """Return a mask of floats, as actors keep it, as truth values."""
    return None if mask is None else [bool(value) for value in mask]


def _about(content: Mapping[str, Any], flag: str) -> Metadata:
    number = content.get("rollout_id")
    return Metadata(
        step=number if isinstance(number, int) else None,
        engine=Side("sglang"),
        trainer=Side("megatron") if flag.endswith("train-data") else None,
        source=f"slime or miles {flag}",
    )
