"""Converts HTTP answers of vLLM and SGLang, saved as they came: one answer a line, a list, or a single answer.

Each is an answer by itself or `{"request": …, "response": …}`; the request helps where an answer does not repeat the prompt.
The events of a stream are refused: each holds a part of an answer.

`/v1/completions` and `/v1/chat/completions` of vLLM 0.32 (entrypoints/openai/*/protocol.py): ask with `"logprobs": 0` or
`"logprobs": true`, and `"return_token_ids": true`, which gives `prompt_token_ids` and `token_ids`. The same of SGLang 0.5.23
(srt/entrypoints/openai/protocol.py), where a chat needs `"return_prompt_token_ids": true` as well and calls the tokens
`response_token_ids`. SGLang's own `/generate` (srt/managers/tokenizer_manager.py): ask with `"return_logprob": true,
"logprob_start_len": 0`, which gives `input_token_logprobs` and `output_token_logprobs` as [logprob, id, text].
SGLang reports the weight version of every answer, and spans of versions where it changed within an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ckptcheck.checkpoint.document import clip
from ckptcheck.rollouts.build import Rollout, UnusableSequence
from ckptcheck.rollouts.convert.routing_payload import decode_routing
from ckptcheck.rollouts.json_text import WrongType, convert_json, to_printable
from ckptcheck.rollouts.metadata import Metadata, SamplingInfo, ScorerInfo, Whole


class TokenLogprob(msgspec.Struct):
    """One token of a chat."""

    logprob: float | None
    token: str = ""


class ChoiceLogprobs(msgspec.Struct):
    """The logprobs of a choice: `content` of a chat, the rest of a completion."""

    content: list[TokenLogprob] | None = None
    token_logprobs: list[float | None] | None = None
    tokens: list[str] | None = None


class Choice(msgspec.Struct):
    """One choice of an answer in OpenAI's form."""

    index: int | None = 0
    finish_reason: str | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    response_token_ids: list[int] | None = None
    routed_experts: Any = None
    logprobs: ChoiceLogprobs | None = None


class Span(msgspec.Struct):
    """Tokens [start, end) of a response and their weight version."""

    version: Any
    start: int
    end: int


ScoredToken = tuple[float | None, int, Any]
"""Logprob, id, text."""


class MetaInfo(msgspec.Struct):
    """`meta_info` of /generate. `metadata` of SGLang's answers in OpenAI's form holds the weight versions too."""

    finish_reason: Any = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_token_logprobs: list[ScoredToken] | None = None
    output_token_logprobs: list[ScoredToken] | None = None
    weight_version: Any = None
    weight_versions: list[Span] | None = None


class Answer(msgspec.Struct):
    """One answer: `meta_info` is set in /generate's form, `choices` in OpenAI's."""

    model: Any = None
    choices: list[Choice] | None = None
    prompt_token_ids: list[int] | None = None
    output_ids: list[int] | None = None
    meta_info: MetaInfo | None = None
    metadata: MetaInfo | None = None


def parse_answer(content: Any) -> Answer:
    """Read one answer. Raises UnusableSequence where the content is none, or the server reports an error."""
    if isinstance(content, UnusableSequence):
        raise content
    if not isinstance(content, dict):
        raise UnusableSequence("it is no JSON object")
    error = content.get("error") or (content.get("object") == "error" and content)
    if error:
        message = error.get("message") if isinstance(error, dict) else error
        text = " ".join(to_printable(message or "it says no more").split())
        raise UnusableSequence(f"the server answered with an error: {clip(text)}")
    if content.get("choices") is None and content.get("meta_info") is None:
        raise UnusableSequence(
            "it has no choices" if "choices" in content else "it is no answer: it has no choices and no meta_info"
        )
    try:
        return convert_json(content, Answer)
    except WrongType as error:
        raise UnusableSequence(str(error)) from error


FINISH = {"eos_token": "stop"}
Request = Mapping[str, Any]


def _list_requests_and_answers(content: Any) -> Iterator[tuple[Request, Answer | UnusableSequence]]:
    """Yield each answer with its request, which is {} where it was not saved."""
    for entry in content:
        response, request = (entry["response"], entry.get("request")) if _is_pair(entry) else (entry, None)
        # a list is SGLang's answer to a batch
        for each in response if isinstance(response, list) else [response]:
            try:
                answer: Answer | UnusableSequence = parse_answer(each)
            except UnusableSequence as error:
                answer = error
            yield request if isinstance(request, dict) else {}, answer


def _is_pair(content: Any) -> bool:
    return isinstance(content, dict) and "response" in content and not {"choices", "meta_info"} & content.keys()


def _list_answers(content: Any) -> Iterator[Request]:
    """Yield the answers as they were saved."""
    for entry in content:
        response = entry["response"] if _is_pair(entry) else entry
        for answer in response if isinstance(response, list) else [response]:
            if isinstance(answer, dict):
                yield answer


def _is_sglang_answer(answer: Request) -> bool:
    choices = answer.get("choices")
    is_marked = isinstance(choices, list) and choices and isinstance(choices[0], dict) and "matched_stop" in choices[0]
    return isinstance(answer.get("meta_info"), dict) or bool(is_marked)


def is_sglang(content: Any) -> bool:
    """Whether there are answers of SGLang: of /generate, or in OpenAI's form with SGLang's own field `matched_stop`."""
    return any(_is_sglang_answer(answer) for answer in _list_answers(content))


def is_mixed(content: Any) -> bool:
    """Whether there are answers of SGLang beside answers of another engine in OpenAI's form."""
    answers = [answer for answer in _list_answers(content) if answer.get("choices") or answer.get("meta_info")]
    return len({_is_sglang_answer(answer) for answer in answers}) > 1


def _is_event(answer: Request) -> bool:
    """Whether this is an event of a stream: a chunk, or one whose finish reason is null."""
    parts = [answer["meta_info"]] if isinstance(answer.get("meta_info"), dict) else answer.get("choices")
    return str(answer.get("object")).endswith(".chunk") or any(
        isinstance(part, dict) and "finish_reason" in part and part["finish_reason"] is None
        for part in (parts if isinstance(parts, list) else ())
    )


def is_vllm(content: Any) -> bool:
    """Whether there are answers in OpenAI's form, errors included."""
    return any(
        "choices" in answer or "error" in answer or answer.get("object") == "error" for answer in _list_answers(content)
    )


def sglang(content: Any) -> tuple[list[Rollout | UnusableSequence], Metadata]:
    """Convert answers of SGLang."""
    return _convert_answers(content, "sglang")


def vllm(content: Any) -> tuple[list[Rollout | UnusableSequence], Metadata]:
    """Convert answers of vLLM; every choice becomes a sequence."""
    return _convert_answers(content, "vllm")


def _convert_answers(content: Any, engine: str) -> tuple[list[Rollout | UnusableSequence], Metadata]:
    if any(map(_is_event, _list_answers(content))):
        raise UnusableSequence("it holds events of streams: save answers to requests that do not stream")
    rollouts: list[Rollout | UnusableSequence] = []
    requests: list[Request] = []
    models = []
    for request, answer in _list_requests_and_answers(content):
        if isinstance(answer, UnusableSequence):
            rollouts.append(answer)
            continue
        if answer.meta_info is not None:
            rollouts.append(_convert_generate_answer(answer, answer.meta_info, request))
        else:
            rollouts += [_convert_choice(choice, answer, request) for choice in answer.choices or ()] or [
                UnusableSequence("it has no choices")
            ]
            models.append(to_printable(answer.model or ""))
        sampling = request.get("sampling_params")
        requests.append({**request, **(sampling if isinstance(sampling, dict) else {})})
    return rollouts, _build_metadata(engine, requests, models[0] if len(set(models)) == 1 else "")


def _convert_generate_answer(answer: Answer, meta_info: MetaInfo, request: Request) -> Rollout | UnusableSequence:
    """Convert an answer of /generate."""
    prompt_logprobs = meta_info.input_token_logprobs or []
    output_logprobs = meta_info.output_token_logprobs
    output_ids = None if output_logprobs is None else [token for _, token, _ in output_logprobs]
    prompt = _first_nonempty([answer.prompt_token_ids, _as_token_ids(request.get("input_ids"))])
    if prompt_logprobs and len(prompt_logprobs) == meta_info.prompt_tokens:
        prompt = [token for _, token, _ in prompt_logprobs]
    output = _first_nonempty([answer.output_ids, output_ids])
    reason = meta_info.finish_reason
    if isinstance(reason, dict):
        reason = reason.get("type")
    logprobs = None if output_logprobs is None else [logprob for logprob, _, _ in output_logprobs]
    return _build_rollout(prompt, output, logprobs, reason, meta_info)


def _convert_choice(choice: Choice, answer: Answer, request: Request) -> Rollout | UnusableSequence:
    prompt = _first_nonempty([choice.prompt_token_ids, answer.prompt_token_ids, _requested_prompt(choice, request)])
    output = _first_nonempty([choice.token_ids, choice.response_token_ids, _parse_token_id_texts(choice.logprobs)])
    logprobs = _choice_logprobs(choice.logprobs)
    if logprobs and output is not None and len(logprobs) > len(output):
        # with "echo" the logprobs of the prompt come first
        logprobs = logprobs[len(logprobs) - len(output) :]
    rollout = _build_rollout(prompt, output, logprobs, choice.finish_reason, answer.metadata or MetaInfo())
    if isinstance(rollout, Rollout):
        try:
            start = request.get("routed_experts_prompt_start")
            rollout.engine_routing = decode_routing(choice.routed_experts, len(rollout.tokens), start)
        except UnusableSequence as error:
            return error
    return rollout


def _as_token_ids(ids: Any) -> list[int] | None:
    return ids if isinstance(ids, list) and all(type(token) is int for token in ids) else None


def _first_nonempty(values: Sequence[list[int] | None]) -> list[int] | None:
    """Return the first list that is not empty; where all are empty, the first that is not None."""
    return next((value for value in values if value), next((value for value in values if value is not None), None))


def _requested_prompt(choice: Choice, request: Request) -> list[int] | None:
    """Return the prompt of a choice from a request that holds token ids; None from any other.

    The answer to several prompts lists the choices in the order of the prompts, `n` choices for each.
    """
    prompt, choices = request.get("prompt"), request.get("n")
    if isinstance(prompt, list) and prompt and all(isinstance(item, list) for item in prompt):
        place = (choice.index or 0) // (choices if type(choices) is int and choices > 0 else 1)
        prompt = prompt[place] if 0 <= place < len(prompt) else None
    return _as_token_ids(prompt)


def _build_rollout(
    prompt: list[int] | None,
    output: list[int] | None,
    logprobs: list[float | None] | None,
    finish: Any,
    meta_info: MetaInfo,
) -> Rollout | UnusableSequence:
    if prompt is None or output is None:
        missing = "prompt" if prompt is None else "response"
        return UnusableSequence(
            f"the token ids of a {missing} are missing: ask for them (return_token_ids, logprob_start_len 0)"
        )
    reason = to_printable(finish) if isinstance(finish, str) else ""
    return Rollout(
        tokens=[*prompt, *output],
        prompt=len(prompt),
        # an empty response lacks no logprobs
        engine=logprobs if output or logprobs is not None else [],
        versions=_list_versions(meta_info, len(output)),
        finish=FINISH.get(reason, reason),
    )


def _list_versions(meta_info: MetaInfo, tokens: int) -> list[str]:
    """Return the weight version of each token of a response; [] where a token has none."""
    versions = ["" if meta_info.weight_version is None else to_printable(meta_info.weight_version)] * tokens
    for span in meta_info.weight_versions or ():
        begin, end = (max(0, min(tokens, place)) for place in (span.start, span.end))
        versions[begin:end] = [to_printable(span.version)] * (end - begin)
    return versions if all(versions) else []


def _choice_logprobs(logprobs: ChoiceLogprobs | None) -> list[float | None] | None:
    """Return the logprobs of a choice, which a completion and a chat store in different fields."""
    if logprobs is None or logprobs.content is None:
        return None if logprobs is None else logprobs.token_logprobs
    return [token.logprob for token in logprobs.content]


def _parse_token_id_texts(logprobs: ChoiceLogprobs | None) -> list[int] | None:
    """Return the ids of tokens that are written as ``token_id:123`` (return_tokens_as_token_ids), None where one is not."""
    if logprobs is None:
        return None
    words = [token.token for token in logprobs.content or ()] or logprobs.tokens or []
    ids = [digits for word in words if (digits := word.removeprefix("token_id:")) != word and _is_id(digits)]
    return [int(digits) for digits in ids] if words and len(ids) == len(words) else None


def _is_id(digits: str) -> bool:
    return digits.isascii() and digits.isdecimal() and len(digits) < 12


NAMES = {"max_tokens": ("max_new_tokens", "max_completion_tokens")}
KINDS: dict[str, Any] = {"temperature": float, "top_p": float, "top_k": Whole, "max_tokens": Whole, "seed": Whole}


def _build_metadata(engine: str, requests: list[Request], model: str) -> Metadata:
    """Build the metadata, with those sampling parameters that all requests share."""
    shared: dict[str, Any] = {}
    for name, kind in KINDS.items():
        values = [
            next((request[key] for key in (name, *NAMES.get(name, ())) if key in request), None) for request in requests
        ]
        if not values or any(other != values[0] for other in values):
            continue
        try:
            value: float = convert_json(values[0], kind)
        except WrongType:
            # no engine accepts such a value
            continue
        # top_k -1: off
        shared[name] = max(0, value) if name in ("top_k", "max_tokens") else value
    return Metadata(
        model=model, engine=ScorerInfo(engine), sampling=SamplingInfo(**shared), source=f"answers of {engine}"
    )
