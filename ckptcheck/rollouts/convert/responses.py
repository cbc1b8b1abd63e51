"""Answers of vLLM and SGLang over HTTP, saved as they came: an answer a line, a list of them, or one.

Either an answer by itself, or `{"request": …, "response": …}`; the request helps where an answer does not repeat the prompt.

vLLM 0.32 (entrypoints/openai/*/protocol.py), `/v1/completions` and `/v1/chat/completions`: ask with `"logprobs": 0` or
`"logprobs": true`, and `"return_token_ids": true`, which gives `prompt_token_ids` and `token_ids`.
SGLang 0.5.23 (srt/managers/tokenizer_manager.py), `/generate`: ask with `"return_logprob": true, "logprob_start_len": 0`, which
gives `input_token_logprobs` and `output_token_logprobs` as [logprob, id, text]; `weight_version` is that of the whole answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ckptcheck.rollouts.build import Rollout
from ckptcheck.rollouts.metadata import Logprobs, Metadata, Sampling, Side

FINISH = {"eos_token": "stop"}


def _pairs(content: Any) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Give request ({} where it was not saved) and answer."""
    for each in content:
        paired = isinstance(each, dict) and isinstance(each.get("response"), (dict, list))
        request, answer = (each.get("request") or {}, each["response"]) if paired else ({}, each)
        for one in answer if isinstance(answer, list) else [answer]:  # SGLang answers a batch by a list
            yield request, one


def _first(content: Any) -> Mapping[str, Any]:
    answer = next((answer for _, answer in _pairs(content)), None) if isinstance(content, list) else None
    return answer if isinstance(answer, dict) else {}


def is_sglang(content: Any) -> bool:
    """Whether these are answers of SGLang's /generate."""
    return isinstance(_first(content).get("meta_info"), dict)


def is_vllm(content: Any) -> bool:
    """Whether these are answers in OpenAI's form."""
    return isinstance(_first(content).get("choices"), list)


def sglang(content: Any) -> tuple[list[Rollout], Metadata]:
    """Take over answers of SGLang."""
    rollouts, requests = [], []
    for request, answer in _pairs(content):
        told = answer["meta_info"]
        before, after = told.get("input_token_logprobs") or [], told.get("output_token_logprobs")
        prompt = (
            [entry[1] for entry in before] if len(before) == told.get("prompt_tokens") else request.get("input_ids")
        )
        output = answer.get("output_ids") or [entry[1] for entry in after or ()]
        reason = told.get("finish_reason")
        rollouts.append(
            _rollout(
                prompt,
                output,
                None if after is None else [entry[0] for entry in after],
                reason.get("type", "") if isinstance(reason, dict) else str(reason or ""),
                told.get("weight_version"),
            )
        )
        requests.append(request.get("sampling_params") or {})
    return rollouts, _about("sglang", requests, "", {"max_tokens": "max_new_tokens"})


def vllm(content: Any) -> tuple[list[Rollout], Metadata]:
    """Take over answers of vLLM, every choice of them."""
    rollouts, requests, model = [], [], ""
    for request, answer in _pairs(content):
        model = model or str(answer.get("model") or "")
        asked = request.get("prompt")
        for choice in answer["choices"]:
            prompt = choice.get("prompt_token_ids") or answer.get("prompt_token_ids")
            if prompt is None and isinstance(asked, list) and all(type(token) is int for token in asked):
                prompt = asked
            logprobs = _openai(choice.get("logprobs"))
            output = choice.get("token_ids") or _ids(choice.get("logprobs"))
            rollouts.append(_rollout(prompt, output, logprobs, str(choice.get("finish_reason") or ""), None))
        requests.append(request)
    return rollouts, _about("vllm", requests, model, {})


def _rollout(prompt: Any, output: Any, logprobs: Any, finish: str, version: Any) -> Rollout:
    if prompt is None or output is None:
        what = "prompt" if prompt is None else "response"
        raise ValueError(f"the token ids of a {what} are missing: ask for them (return_token_ids, logprob_start_len 0)")
    versions = [str(version)] * len(output) if version is not None else []
    tokens = [*prompt, *output]
    return Rollout(tokens, len(prompt), engine=logprobs, versions=versions, finish=FINISH.get(finish, finish))


def _openai(logprobs: Any) -> list[float] | None:
    """Return the logprobs of a choice: of a completion, or of a chat."""
    if not isinstance(logprobs, dict):
        return None
    if isinstance(logprobs.get("content"), list):
        return [entry["logprob"] for entry in logprobs["content"]]
    return logprobs.get("token_logprobs")


def _ids(logprobs: Any) -> list[int] | None:
    """Return ids spelled as tokens, ``token_id:123`` (return_tokens_as_token_ids)."""
    if not isinstance(logprobs, dict):
        return None
    content = logprobs.get("content")
    words = [entry["token"] for entry in content] if isinstance(content, list) else logprobs.get("tokens") or []
    spelled = [word.removeprefix("token_id:") for word in words if word.startswith("token_id:")]
    return [int(word) for word in spelled] if words and len(spelled) == len(words) else None


def _about(engine: str, requests: list[Mapping[str, Any]], model: str, names: Mapping[str, str]) -> Metadata:
    """Make the metadata; of the sampling parameters those that all requests share."""
    shared: dict[str, Any] = {}
    for name in ("temperature", "top_p", "top_k", "max_tokens", "seed"):
        values = {repr(request.get(names.get(name, name))): request.get(names.get(name, name)) for request in requests}
        value = next(iter(values.values()), None)
        if len(values) == 1 and isinstance(value, (int, float)):
            shared[name] = float(value) if name in ("temperature", "top_p") else int(value)
    kind: Logprobs = "unknown"
    return Metadata(
        model=model, engine=Side(engine), sampling=Sampling(**shared), logprobs=kind, source=f"answers of {engine}"
    )
