"""Answers of vLLM and SGLang over HTTP, saved as they came: an answer a line, a list of them, one, or the events of a stream.

Either an answer by itself, or `{"request": …, "response": …}`; the request helps where an answer does not repeat the prompt.

`/v1/completions` and `/v1/chat/completions` of vLLM 0.32 (entrypoints/openai/*/protocol.py): ask with `"logprobs": 0` or
`"logprobs": true`, and `"return_token_ids": true`, which gives `prompt_token_ids` and `token_ids`. The same of SGLang 0.5.23
(srt/entrypoints/openai/protocol.py), where a chat needs `"return_prompt_token_ids": true` as well and calls the tokens
`response_token_ids`. SGLang's own `/generate` (srt/managers/tokenizer_manager.py): ask with `"return_logprob": true,
"logprob_start_len": 0`, which gives `input_token_logprobs` and `output_token_logprobs` as [logprob, id, text].
SGLang tells the weight version of every answer, and spans of them where it changed within one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ckptcheck.rollouts.build import Rollout
from ckptcheck.rollouts.convert.streams import joined
from ckptcheck.rollouts.metadata import Logprobs, Metadata, Sampling, Side

FINISH = {"eos_token": "stop"}
Answer = Mapping[str, Any]


def _pairs(content: Any) -> Iterator[tuple[Answer, Any]]:
    """Give request ({} where it was not saved) and answer."""
    bare = []
    for each in content:
        if isinstance(each, dict) and isinstance(each.get("response"), (dict, list)):
            answer = each["response"]  # SGLang answers a batch by a list; a stream is one
            for one in joined(answer if isinstance(answer, list) else [answer]):
                yield each.get("request") or {}, one
        else:
            bare += each if isinstance(each, list) else [each]
    for one in joined(bare):
        yield {}, one


def _first(content: Any) -> Answer:
    """Return the first answer as it stands; {} where there is none."""
    answer = content
    for _ in range(3):  # a list of pairs, and an answer that is a list
        if isinstance(answer, list):
            answer = next(iter(answer), None)
        elif isinstance(answer, dict) and isinstance(answer.get("response"), (dict, list)):
            answer = answer["response"]
    return answer if isinstance(answer, dict) else {}


def is_sglang(content: Any) -> bool:
    """Whether these are answers of SGLang: of /generate, or in OpenAI's form, where its own field tells."""
    answer = _first(content)
    choices = answer.get("choices")
    own = isinstance(choices, list) and choices and isinstance(choices[0], dict) and "matched_stop" in choices[0]
    return isinstance(answer.get("meta_info"), dict) or bool(own)


def is_vllm(content: Any) -> bool:
    """Whether these are answers in OpenAI's form."""
    return isinstance(_first(content).get("choices"), list)


def sglang(content: Any) -> tuple[list[Rollout], Metadata]:
    """Take over answers of SGLang."""
    return _taken(content, "sglang")


def vllm(content: Any) -> tuple[list[Rollout], Metadata]:
    """Take over answers of vLLM, every choice of them."""
    return _taken(content, "vllm")


def _taken(content: Any, engine: str) -> tuple[list[Rollout], Metadata]:
    rollouts, requests, model = [], [], ""
    for request, answer in _pairs(content):
        if "choices" in answer:
            model = model or str(answer.get("model") or "")
            rollouts += [_choice(choice, answer, request) for choice in answer["choices"]]
        else:
            rollouts.append(_generated(answer, request))
        requests.append({**request, **(request.get("sampling_params") or {})})
    return rollouts, _about(engine, requests, model)


def _generated(answer: Answer, request: Answer) -> Rollout:
    """Take over an answer of /generate."""
    told = answer["meta_info"]
    before, after = told.get("input_token_logprobs") or [], told.get("output_token_logprobs")
    prompt = answer.get("prompt_token_ids") or _flat(request.get("input_ids"))
    if len(before) == told.get("prompt_tokens"):
        prompt = [entry[1] for entry in before]
    output = answer.get("output_ids") or [entry[1] for entry in after or ()]
    reason = told.get("finish_reason")
    finish = reason.get("type", "") if isinstance(reason, dict) else str(reason or "")
    return _rollout(prompt, output, None if after is None else [entry[0] for entry in after], finish, told)


def _choice(choice: Answer, answer: Answer, request: Answer) -> Rollout:
    prompt = choice.get("prompt_token_ids") or answer.get("prompt_token_ids") or _asked(choice, request)
    said = choice.get("logprobs")
    output = choice.get("token_ids") or choice.get("response_token_ids") or _ids(said)
    logprobs = _openai(said)
    if logprobs and output is not None and len(logprobs) > len(output):
        logprobs = logprobs[-len(output) :]  # with "echo" the prompt's come first
    finish = str(choice.get("finish_reason") or "")
    return _rollout(prompt, output, logprobs, finish, answer.get("metadata") or {})


def _flat(ids: Any) -> list[int] | None:
    return ids if isinstance(ids, list) and all(type(token) is int for token in ids) else None


def _asked(choice: Answer, request: Answer) -> list[int] | None:
    """Return the prompt of a choice from its request, where it was asked in token ids: of several the choices come in order."""
    asked = request.get("prompt")
    if isinstance(asked, list) and asked and all(isinstance(each, list) for each in asked):
        asked = asked[choice.get("index", 0) // (request.get("n") or 1)]
    return _flat(asked)


def _rollout(prompt: Any, output: Any, logprobs: Any, finish: str, told: Answer) -> Rollout:
    if prompt is None or output is None:
        what = "prompt" if prompt is None else "response"
        raise ValueError(f"the token ids of a {what} are missing: ask for them (return_token_ids, logprob_start_len 0)")
    tokens = [*prompt, *output]
    versions = _versions(told, len(output))
    return Rollout(tokens, len(prompt), engine=logprobs, versions=versions, finish=FINISH.get(finish, finish))


def _versions(told: Answer, number: int) -> list[str]:
    """Return the weight version of each token of a response; [] where none is told."""
    version = told.get("weight_version")
    found = [str(version)] * number if version is not None else []
    for span in told.get("weight_versions") or ():
        begin, end = (min(number, int(span[key])) for key in ("start", "end"))
        found[begin:end] = [str(span["version"])] * (end - begin)
    return found if len(found) == number else []


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


NAMES = {"max_tokens": ("max_new_tokens", "max_completion_tokens")}


def _about(engine: str, requests: Sequence[Answer], model: str) -> Metadata:
    """Make the metadata; of the sampling parameters those that all requests share."""
    shared: dict[str, Any] = {}
    for name in ("temperature", "top_p", "top_k", "max_tokens", "seed"):
        values = [next((each[key] for key in (name, *NAMES.get(name, ())) if key in each), None) for each in requests]
        value = values[0] if values else None
        if isinstance(value, (int, float)) and all(each == value for each in values):
            shared[name] = float(value) if name in ("temperature", "top_p") else max(0, int(value))  # top_k -1: off
    kind: Logprobs = "unknown"
    return Metadata(
        model=model, engine=Side(engine), sampling=Sampling(**shared), logprobs=kind, source=f"answers of {engine}"
    )
