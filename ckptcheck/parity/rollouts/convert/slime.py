"""Converts the files that slime and miles save for debugging. Both write the same, because miles is a fork of slime.

``--save-debug-rollout-data``: `{"rollout_id", "samples": [Sample.to_dict()]}`. A sample has `tokens`, `response_length`,
`loss_mask` and `rollout_log_probs` (of the response), `weight_versions` (of every call, not of every token), `status`,
`rollout_routed_experts` [tokens - 1, layers, k]. Sources: THUDM/slime slime/utils/types.py at 0d234f3, slime/ray/rollout.py;
radixark/miles miles/utils/types.py at 002ce70.

``--save-debug-train-data``: `{"rollout_id", "rank", "rollout_data": {name: [one of each sequence]}}` with `tokens`,
`response_lengths`, `loss_masks`, `rollout_log_probs`, `log_probs`, `ref_log_probs`. Source: slime/utils/train_dump_utils.py at
429eb3d.
With context parallelism a rank has only a part of each sequence's logprobs; such sequences are left out, because their lengths
disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckptcheck.parity.rollouts.build import Rollout, UnusableSequence
from ckptcheck.parity.rollouts.convert.reading import as_float, as_int, read_each
from ckptcheck.parity.rollouts.json_text import to_printable
from ckptcheck.parity.rollouts.metadata import Metadata, ScorerInfo


def is_rollout(content: Any) -> bool:
    """Whether a file was written by --save-debug-rollout-data."""
    return isinstance(content, dict) and isinstance(content.get("samples"), list) and "rollout_id" in content


def is_train(content: Any) -> bool:
    """Whether a file was written by --save-debug-train-data."""
    return isinstance(content, dict) and isinstance(content.get("rollout_data"), dict)


def rollout(content: Any) -> tuple[list[Rollout | UnusableSequence], Metadata]:
    """Convert the samples; a group of samples counts as its single samples."""
    samples: list[Any] = []
    for entry in content["samples"]:
        samples += entry if isinstance(entry, list) else [entry]
    return read_each(_to_rollout, samples), _build_metadata(content, "--save-debug-rollout-data")


def _to_rollout(sample: Any) -> Rollout:
    if not isinstance(sample, dict):
        raise UnusableSequence("it is no sample: it has no fields")
    tokens, response = _require_ids(sample["tokens"]), _parse_length(sample["response_length"])
    mask = sample.get("loss_mask")
    if sample.get("remove_sample"):
        mask = [0] * response
    reward = sample.get("reward")
    return Rollout(
        tokens=tokens,
        prompt=len(tokens) - response,
        engine=sample.get("rollout_log_probs"),
        mask=mask,
        versions=_list_versions(sample.get("weight_versions"), response),
        reward=as_float(reward),
        finish=to_printable(sample.get("status") or ""),
        engine_routing=sample.get("rollout_routed_experts"),
    )


def _require_ids(tokens: Any) -> Any:
    if not hasattr(tokens, "__len__") or isinstance(tokens, (str, bytes)):
        raise UnusableSequence("its tokens are no list of ids")
    return tokens


def _parse_length(response: Any) -> int:
    length = as_int(response.item() if hasattr(response, "item") and response.size == 1 else response)
    if length is None or length < 0:
        raise UnusableSequence("its response length is no whole number")
    return length


def _list_versions(calls: Any, response: int) -> list[str]:
    """Return the weight version of every token of a response; [] where its calls had several.

    The file does not record where one call ends and the next begins.
    """
    versions = {to_printable(version) for version in (() if calls is None else calls)}
    return [versions.pop()] * response if len(versions) == 1 else []


def train(content: Any) -> tuple[list[Rollout | UnusableSequence], Metadata]:
    """Convert the sequences that one rank trained on."""
    data = content["rollout_data"]
    for name in ("tokens", "response_lengths"):
        if not hasattr(data[name], "__len__"):
            raise UnusableSequence(f"its {name} are no list")

    def sequence(place: int) -> Rollout:
        def value_of(name: str) -> Any:
            return data[name][place] if data.get(name) is not None else None

        tokens, response = _require_ids(data["tokens"][place]), _parse_length(data["response_lengths"][place])
        return Rollout(
            tokens=tokens,
            prompt=len(tokens) - response,
            engine=value_of("rollout_log_probs"),
            trainer=value_of("log_probs"),
            reference=value_of("ref_log_probs"),
            mask=_to_booleans(value_of("loss_masks")),
            versions=_list_versions(value_of("weight_versions"), response),
            engine_routing=value_of("rollout_routed_experts"),
        )

    return read_each(sequence, range(len(data["tokens"]))), _build_metadata(content, "--save-debug-train-data")


def _to_booleans(mask: Any) -> Any:
    """Return a mask as booleans; actors store it as floats."""
    return None if mask is None else [bool(value) for value in mask]


def _build_metadata(content: Mapping[str, Any], flag: str) -> Metadata:
    return Metadata(
        step=as_int(content.get("rollout_id")),
        engine=ScorerInfo("sglang"),
        trainer=ScorerInfo("megatron") if flag.endswith("train-data") else None,
        source=f"slime or miles {flag}",
    )
