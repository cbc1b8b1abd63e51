"""Converts the actor's stream of PipelineRL (`streams: files`): ``streams/actor/*/*.jsonl``, one group of texts a line.

A text is a `TrainingText`: `input_ids` and `labels` of every token, -100 for those that are not trained, and one logprob of the
engine in `logprobs` (and of the reference model in `ref_logprobs`) for each label. `metadata.model_version` is the version of the
weights when the request began; an update in flight makes later tokens newer. PipelineRL saves no logprobs of its trainer:
``ckptcheck parity score`` adds them. Source: ServiceNow/PipelineRL pipelinerl/rollouts.py, actor.py, async_llm.py at 58d3934.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ckptcheck.rollouts.build import Rollout, UnusableSequence
from ckptcheck.rollouts.convert.format import RolloutFormat
from ckptcheck.rollouts.convert.reading import as_int, read_each
from ckptcheck.rollouts.json_text import WrongType, convert_json
from ckptcheck.rollouts.metadata import Metadata, ScorerInfo

NO_LABEL = -100


class Text(msgspec.Struct):
    """The fields of a `TrainingText` that the converter reads."""

    input_ids: list[int]
    labels: list[int]
    logprobs: list[float | None]
    ref_logprobs: list[float | None] = []
    reward: float | None = None
    metadata: dict[str, Any] = {}


def is_stream(content: Any) -> bool:
    """Whether these lines are texts, or groups of texts."""
    return any(
        isinstance(text, dict) and {"input_ids", "labels", "logprobs"} <= text.keys() for text in _texts(content)
    )


def stream(content: Any) -> tuple[list[Rollout | UnusableSequence], Metadata]:
    """Convert the texts."""
    metadata = Metadata(engine=ScorerInfo("vllm"), source="PipelineRL actor stream")
    return read_each(_to_rollout, list(_texts(content))), metadata


def _texts(content: Any) -> Iterator[Any]:
    """Yield the texts of all groups. A text that stands in no group is one too."""
    for line in content:
        yield from line if isinstance(line, list) else (line,)


def _to_rollout(content: Any) -> Rollout:
    try:
        text = convert_json(content, Text)
    except WrongType as error:
        raise UnusableSequence(str(error)) from error
    if len(text.labels) != len(text.input_ids):
        raise UnusableSequence(f"it has {len(text.labels):,} labels for {len(text.input_ids):,} tokens")
    mask = [label != NO_LABEL for label in text.labels]
    prompt = mask.index(True) if any(mask) else len(mask)
    version = as_int(text.metadata.get("model_version"))
    return Rollout(
        tokens=text.input_ids,
        prompt=prompt,
        engine=_spread(text.logprobs, mask, "logprobs"),
        reference=_spread(text.ref_logprobs, mask, "ref_logprobs") if text.ref_logprobs else None,
        mask=mask,
        versions=[str(version)] * (len(mask) - prompt) if version is not None else (),
        reward=text.reward,
    )


def _spread(values: list[float | None], mask: list[bool], name: str) -> list[float | None]:
    """Return a logprob for every token, 0 for a token without a label. values: one for each label."""
    if len(values) != sum(mask):
        raise UnusableSequence(f"it has {len(values):,} {name} for {sum(mask):,} labels")
    rest = iter(values)
    return [next(rest) if trained else 0.0 for trained in mask]


FORMATS = (RolloutFormat("pipelinerl", is_stream, stream, is_json=True),)
