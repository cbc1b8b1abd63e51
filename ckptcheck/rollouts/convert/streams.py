"""Puts streamed answers together again: events as they came, one after the other, those of several requests mixed or not.

Events of one answer have one id. OpenAI's form gives what is new in each; SGLang's /generate gives all that there is so far,
unless it was started with --incremental-streaming-output. An answer that was not streamed is the only one of its id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Answer = Mapping[str, Any]


def events(raw: bytes) -> bytes:
    """Return the JSON of a stream of server-sent events, a line for each; other content as it is."""
    if not raw.lstrip().startswith((b"data:", b"event:", b":")):
        return raw
    said = (line[5:].strip() for line in raw.splitlines() if line.startswith(b"data:"))
    return b"\n".join(line for line in said if line and line != b"[DONE]")


def joined(answers: Iterable[Any]) -> list[Any]:
    """Put events together; everything else stays as it is and where it is."""
    groups: dict[object, list[Any]] = {}
    for number, answer in enumerate(answers):
        groups.setdefault(_identity(answer) or number, []).append(answer)
    return [group[0] if len(group) == 1 else _whole(group) for group in groups.values()]


def _identity(answer: Any) -> tuple[str, object] | None:
    """Return what all events of an answer have in common; None where it has no id."""
    if not isinstance(answer, dict):
        return None
    told, own = answer.get("meta_info"), None
    if isinstance(told, dict):
        own = told.get("id")
    elif isinstance(answer.get("choices"), list):
        own = answer.get("id")
    # a batch that SGLang streams says by `index` which of its answers an event is of
    return (own, answer.get("index")) if isinstance(own, str) and own else None


def _whole(group: list[Answer]) -> Answer:
    return _choices(group) if "choices" in group[0] else _generated(group)


def _choices(group: list[Answer]) -> Answer:
    """Join events of OpenAI's form."""
    whole = {**group[0]}
    parts: dict[int, list[Answer]] = {}
    for event in group:
        whole |= {key: value for key, value in event.items() if value is not None and key not in _FIRST}
        for choice in event.get("choices") or ():
            parts.setdefault(choice.get("index", 0), []).append(choice)
    prompt = next((event["prompt_token_ids"] for event in group if event.get("prompt_token_ids")), None)
    return {**whole, "prompt_token_ids": prompt, "choices": [_choice(each) for _, each in sorted(parts.items())]}


_FIRST = ("choices", "id", "object")


def _choice(parts: list[Answer]) -> Answer:
    whole = {key: value for part in parts for key, value in part.items() if value is not None}
    for name in ("token_ids", "response_token_ids"):
        if name in whole:
            whole[name] = [token for part in parts for token in part.get(name) or ()]
    logprobs = [part["logprobs"] for part in parts if isinstance(part.get("logprobs"), dict)]
    if logprobs:
        names = {name for each in logprobs for name, value in each.items() if isinstance(value, list)}
        whole["logprobs"] = {name: [one for each in logprobs for one in each.get(name) or ()] for name in names}
    return whole


def _generated(group: list[Answer]) -> Answer:
    """Join events of SGLang's /generate."""
    last = group[-1]
    told = last["meta_info"]
    if len(last.get("output_ids") or ()) >= (told.get("completion_tokens") or 0):
        return last  # the last event has everything
    names = ("output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs")
    sliced = {
        name: [one for event in group for one in event["meta_info"].get(name) or ()] for name in names if name in told
    }
    ids = [token for event in group for token in event.get("output_ids") or ()]
    return {**last, "output_ids": ids, "meta_info": {**told, **sliced}}
