"""Converts the files that slime and miles save for debugging. Both write the same, because miles is a fork of slime.

``--save-debug-rollout-data``: `{"rollout_id", "samples": [Sample.to_dict()]}`. A sample has `tokens`, `response_length`,
`loss_mask` and `rollout_log_probs` (of the response), `weight_versions` (of every call, not of every token), `status`,
`rollout_routed_experts` [tokens - 1, layers, k]. Sources: THUDM/slime
slime/utils/types.py at 0d234f3, slime/ray/rollout.py; radixark/miles miles/utils/types.py at 002ce70.

``--save-debug-train-data`` has two forms with the same names: `tokens`, `response_lengths`, `loss_masks`, `rollout_log_probs`,
`log_probs`, `ref_log_probs`, `advantages`, of the response.

- `{"rollout_id", "rank", "rollout_data": {name: [one of each sequence]}}`, a file for each rank: slime until 681b3ad (2026-08-12)
  slime/utils/train_dump_utils.py, and miles. With context parallelism a rank has only a part of each sequence's logprobs; such
  sequences are left out, because their lengths disagree.
- `{"format_version": 2, "rollout_id", "rank", "samples": [{name: that of the sequence}], "dp_shards", "raw_reward"}`, one file for
  all ranks, in the order of the rollouts: slime/observability/train_data_utils.py at 624b824. A sample's `rollout_position` is its
  place in `raw_reward`. Where the trainer needs no logprobs before it trains, `log_probs` are those of the training step itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckptcheck.checkpoint.document import clip
from ckptcheck.rollouts.build import Rollout, UnusableSequence
from ckptcheck.rollouts.convert.format import RolloutFormat
from ckptcheck.rollouts.convert.reading import as_float, as_int, read_each
from ckptcheck.rollouts.json_text import to_printable
from ckptcheck.rollouts.metadata import Metadata, ScorerInfo
from ckptcheck.text.formatting import count

TRAIN_VERSION = 2
"""The newest `format_version` of --save-debug-train-data that is known."""
FIELDS = (
    "tokens", "response_lengths", "rollout_log_probs", "log_probs", "ref_log_probs", "loss_masks", "weight_versions", "truncated",
    "rollout_routed_experts", "advantages",
)  # fmt: skip
"""The fields of a trained sequence that the converter reads."""


def is_rollout(content: Any) -> bool:
    """Whether a file was written by --save-debug-rollout-data."""
    return _has_samples(content) and "format_version" not in content


def is_train(content: Any) -> bool:
    """Whether a file was written by --save-debug-train-data."""
    if not isinstance(content, dict):
        return False
    return isinstance(content.get("rollout_data"), dict) or (_has_samples(content) and "format_version" in content)


def _has_samples(content: Any) -> bool:
    return isinstance(content, dict) and isinstance(content.get("samples"), list) and "rollout_id" in content


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
    """Convert the trainer's input sequences: of one rank, or since format version 2 of all ranks."""
    samples = content["samples"] if "format_version" in content else _list_samples(content["rollout_data"])
    version = content.get("format_version", 1)
    if as_int(version) is None or not 1 <= version <= TRAIN_VERSION:
        raise UnusableSequence(
            f"its format version is {clip(to_printable(version))}, and {TRAIN_VERSION} is the newest that is known"
        )
    rewards = content.get("raw_reward")

    def sequence(sample: Any) -> Rollout:
        if not isinstance(sample, dict):
            raise UnusableSequence("it is no sample: it has no fields")
        tokens, response = _require_ids(sample["tokens"]), _parse_length(sample["response_lengths"])
        place = as_int(sample.get("rollout_position"))
        has_reward = isinstance(rewards, list) and place is not None and 0 <= place < len(rewards)
        return Rollout(
            tokens=tokens,
            prompt=len(tokens) - response,
            engine=sample.get("rollout_log_probs"),
            trainer=sample.get("log_probs"),
            reference=sample.get("ref_log_probs"),
            mask=_to_booleans(sample.get("loss_masks")),
            versions=_list_versions(sample.get("weight_versions"), response),
            reward=as_float(rewards[place]) if has_reward else None,
            advantages=sample.get("advantages"),
            finish="truncated" if as_int(sample.get("truncated")) == 1 else "",
            engine_routing=sample.get("rollout_routed_experts"),
        )

    return read_each(sequence, samples), _build_metadata(content, "--save-debug-train-data")


def _list_samples(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of each sequence of a file of format version 1."""
    number = len(columns["tokens"]) if hasattr(columns["tokens"], "__len__") else -1
    per_sequence = {name: columns[name] for name in FIELDS if columns.get(name) is not None}
    for name in ("tokens", "response_lengths", *per_sequence):
        if not hasattr(columns[name], "__len__"):
            raise UnusableSequence(f"its {name} are no list")
        if len(columns[name]) != number:
            raise UnusableSequence(f"it has {len(columns[name]):,} {name} for {count(number, 'sequence')}")
    return [{name: values[place] for name, values in per_sequence.items()} for place in range(number)]


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


FORMATS = (
    RolloutFormat("slime", is_rollout, rollout),
    RolloutFormat("slime-train", is_train, train),
)
