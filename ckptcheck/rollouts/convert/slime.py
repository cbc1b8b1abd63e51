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

from ckptcheck.rollouts.build import Misfit, Rollout
from ckptcheck.rollouts.convert.reading import each, number, whole
from ckptcheck.rollouts.json_text import word
from ckptcheck.rollouts.metadata import Metadata, Side


def is_rollout(content: Any) -> bool:
    """Whether a file was written by --save-debug-rollout-data."""
    return isinstance(content, dict) and isinstance(content.get("samples"), list) and "rollout_id" in content


def is_train(content: Any) -> bool:
    """Whether a file was written by --save-debug-train-data."""
    return isinstance(content, dict) and isinstance(content.get("rollout_data"), dict)


def rollout(content: Any) -> tuple[list[Rollout | Misfit], Metadata]:
    """Take over the samples. Groups of samples are taken apart."""
    samples: list[Any] = []
    for entry in content["samples"]:
        samples += entry if isinstance(entry, list) else [entry]
    return each(_sample, samples), _about(content, "--save-debug-rollout-data")


def _sample(sample: Any) -> Rollout:
    if not isinstance(sample, dict):
        raise Misfit("it is no sample: it has no fields")
    tokens, response = _ids(sample["tokens"]), _length(sample["response_length"])
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
        reward=number(reward),
        finish=word(sample.get("status") or ""),
        engine_routing=sample.get("rollout_routed_experts"),
    )


def _ids(tokens: Any) -> Any:
    if not hasattr(tokens, "__len__") or isinstance(tokens, (str, bytes)):
        raise Misfit("its tokens are no list of ids")
    return tokens


def _length(response: Any) -> int:
    found = whole(response.item() if hasattr(response, "item") and response.size == 1 else response)
    if found is None or found < 0:
        raise Misfit("its response length is no whole number")
    return found


def _versions(calls: Any, response: int) -> list[str]:
    """Return a version of every token where all calls had the same: where one ends and the next begins is not kept."""
    found = {word(version) for version in (() if calls is None else calls)}
    return [found.pop()] * response if len(found) == 1 else []


def train(content: Any) -> tuple[list[Rollout | Misfit], Metadata]:
    """Take over what one rank trained on."""
    data = content["rollout_data"]
    for name in ("tokens", "response_lengths"):
        if not hasattr(data[name], "__len__"):
            raise Misfit(f"its {name} are no list")

    def sequence(place: int) -> Rollout:
        def of(name: str) -> Any:
            return data[name][place] if data.get(name) is not None else None

        tokens, response = _ids(data["tokens"][place]), _length(data["response_lengths"][place])
        return Rollout(
            tokens=tokens,
            prompt=len(tokens) - response,
            engine=of("rollout_log_probs"),
            trainer=of("log_probs"),
            reference=of("ref_log_probs"),
            mask=_truths(of("loss_masks")),
            versions=_versions(of("weight_versions"), response),
            engine_routing=of("rollout_routed_experts"),
        )

    return each(sequence, range(len(data["tokens"]))), _about(content, "--save-debug-train-data")


def _truths(mask: Any) -> Any:
    """Return a mask of floats, as actors keep it, as truth values."""
    return None if mask is None else [bool(value) for value in mask]


def _about(content: Mapping[str, Any], flag: str) -> Metadata:
    return Metadata(
        step=whole(content.get("rollout_id")),
        engine=Side("sglang"),
        trainer=Side("megatron") if flag.endswith("train-data") else None,
        source=f"slime or miles {flag}",
    )
