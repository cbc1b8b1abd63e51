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

from collections.abc import Iterator, Mapping
from typing import Any

from ckptcheck.rollouts.build import Misfit, Rollout
from ckptcheck.rollouts.convert.answers import Answer, Choice, Said, Told
from ckptcheck.rollouts.convert.streams import first, joined
from ckptcheck.rollouts.json_text import Unlike, converted, word
from ckptcheck.rollouts.metadata import Metadata, Sampling, Side, Whole

FINISH = {"eos_token": "stop"}
Request = Mapping[str, Any]


def _pairs(content: Any) -> Iterator[tuple[Request, Answer | Misfit]]:
    """Give request ({} where it was not saved) and answer."""
    bare: list[Any] = []
    for each in content:
        if _is_pair(each):
            said, asked = each["response"], each.get("request")  # SGLang answers a batch by a list; a stream is one
            for one in joined(said if isinstance(said, list) else [said]):
                yield asked if isinstance(asked, dict) else {}, one
        else:
            bare += each if isinstance(each, list) else [each]
    for one in joined(bare):
        yield {}, one


def _is_pair(content: Any) -> bool:
    return isinstance(content, dict) and "response" in content and not {"choices", "meta_info"} & content.keys()


def _bare(content: Any) -> Iterator[Request]:
    """Give the answers as they stand."""
    for each in content:
        said = each["response"] if _is_pair(each) else each
        for one in said if isinstance(said, list) else [said]:
            if isinstance(one, dict):
                yield one


def _is_own(answer: Request) -> bool:
    choices = answer.get("choices")
    own = isinstance(choices, list) and choices and isinstance(choices[0], dict) and "matched_stop" in choices[0]
    return isinstance(answer.get("meta_info"), dict) or bool(own)


def is_sglang(content: Any) -> bool:
    """Whether these are answers of SGLang: of /generate, or in OpenAI's form, where its own field tells."""
    return any(_is_own(answer) for answer in _bare(content))


def is_mixed(content: Any) -> bool:
    """Whether there are answers of SGLang, and whole ones in OpenAI's form that are not."""
    whole = [answer for answer in _bare(content) if _is_whole(answer) or isinstance(answer.get("meta_info"), dict)]
    return len({_is_own(answer) for answer in whole}) > 1


def _is_whole(answer: Request) -> bool:
    """Whether this is an answer, and not an event of a stream: only the last of those says why it ended."""
    choices = answer.get("choices")
    return (
        isinstance(choices, list)
        and bool(choices)
        and all(
            isinstance(choice, dict) and isinstance(choice.get("finish_reason"), str) and "delta" not in choice
            for choice in choices
        )
    )


def is_vllm(content: Any) -> bool:
    """Whether these are answers in OpenAI's form, if only errors."""
    return any("choices" in answer or "error" in answer or answer.get("object") == "error" for answer in _bare(content))


def sglang(content: Any) -> tuple[list[Rollout | Misfit], Metadata]:
    """Take over answers of SGLang."""
    return _taken(content, "sglang")


def vllm(content: Any) -> tuple[list[Rollout | Misfit], Metadata]:
    """Take over answers of vLLM, every choice of them."""
    return _taken(content, "vllm")


def _taken(content: Any, engine: str) -> tuple[list[Rollout | Misfit], Metadata]:
    rollouts: list[Rollout | Misfit] = []
    requests: list[Request] = []
    models = []
    for request, answer in _pairs(content):
        if isinstance(answer, Misfit):
            rollouts.append(answer)
            continue
        if answer.meta_info is not None:
            rollouts.append(_generated(answer, answer.meta_info, request))
        else:
            rollouts += [_choice(choice, answer, request) for choice in answer.choices or ()] or [
                Misfit("it has no choices")
            ]
            models.append(word(answer.model or ""))
        sampling = request.get("sampling_params")
        requests.append({**request, **(sampling if isinstance(sampling, dict) else {})})
    return rollouts, _about(engine, requests, models[0] if len(set(models)) == 1 else "")


def _generated(answer: Answer, told: Told, request: Request) -> Rollout | Misfit:
    """Take over an answer of /generate."""
    before, after = told.input_token_logprobs or [], told.output_token_logprobs
    prompt = first([answer.prompt_token_ids, _flat(request.get("input_ids"))])
    if before and len(before) == told.prompt_tokens:
        prompt = [token for _, token, _ in before]
    output = first([answer.output_ids, None if after is None else [token for _, token, _ in after]])
    reason = told.finish_reason.get("type") if isinstance(told.finish_reason, dict) else told.finish_reason
    return _rollout(prompt, output, None if after is None else [logprob for logprob, _, _ in after], reason, told)


def _choice(choice: Choice, answer: Answer, request: Request) -> Rollout | Misfit:
    prompt = first([choice.prompt_token_ids, answer.prompt_token_ids, _asked(choice, request)])
    output = first([choice.token_ids, choice.response_token_ids, _ids(choice.logprobs)])
    logprobs = _openai(choice.logprobs)
    if logprobs and output is not None and len(logprobs) > len(output):
        logprobs = logprobs[len(logprobs) - len(output) :]  # with "echo" the prompt's come first
    return _rollout(prompt, output, logprobs, choice.finish_reason, answer.metadata or Told())


def _flat(ids: Any) -> list[int] | None:
    return ids if isinstance(ids, list) and all(type(token) is int for token in ids) else None


def _asked(choice: Choice, request: Request) -> list[int] | None:
    """Return the prompt of a choice from its request, where it was asked in token ids: of several the choices come in order."""
    asked, each = request.get("prompt"), request.get("n")
    if isinstance(asked, list) and asked and all(isinstance(one, list) for one in asked):
        place = (choice.index or 0) // (each if type(each) is int and each > 0 else 1)
        asked = asked[place] if 0 <= place < len(asked) else None
    return _flat(asked)


def _rollout(
    prompt: list[int] | None, output: list[int] | None, logprobs: list[float | None] | None, finish: Any, told: Told
) -> Rollout | Misfit:
    if prompt is None or output is None:
        what = "prompt" if prompt is None else "response"
        return Misfit(f"the token ids of a {what} are missing: ask for them (return_token_ids, logprob_start_len 0)")
    reason = word(finish) if isinstance(finish, str) else ""
    return Rollout(
        tokens=[*prompt, *output],
        prompt=len(prompt),
        engine=logprobs if output or logprobs is not None else [],  # of nothing there is nothing missing
        versions=_versions(told, len(output)),
        finish=FINISH.get(reason, reason),
    )


def _versions(told: Told, number: int) -> list[str]:
    """Return the weight version of each token of a response; [] where none is told."""
    found = ["" if told.weight_version is None else word(told.weight_version)] * number
    for span in told.weight_versions or ():
        begin, end = (max(0, min(number, place)) for place in (span.start, span.end))
        found[begin:end] = [word(span.version)] * (end - begin)
    return found if all(found) else []


def _openai(logprobs: Said | None) -> list[float | None] | None:
    """Return the logprobs of a choice: of a completion, or of a chat."""
    if logprobs is None or logprobs.content is None:
        return None if logprobs is None else logprobs.token_logprobs
    return [token.logprob for token in logprobs.content]


def _ids(logprobs: Said | None) -> list[int] | None:
    """Return ids spelled as tokens, ``token_id:123`` (return_tokens_as_token_ids)."""
    if logprobs is None:
        return None
    words = [token.token for token in logprobs.content or ()] or logprobs.tokens or []
    spelled = [digits for each in words if (digits := each.removeprefix("token_id:")) != each and _is_id(digits)]
    return [int(digits) for digits in spelled] if words and len(spelled) == len(words) else None


def _is_id(digits: str) -> bool:
    return digits.isascii() and digits.isdecimal() and len(digits) < 12


NAMES = {"max_tokens": ("max_new_tokens", "max_completion_tokens")}
KINDS: dict[str, Any] = {"temperature": float, "top_p": float, "top_k": Whole, "max_tokens": Whole, "seed": Whole}


def _about(engine: str, requests: list[Request], model: str) -> Metadata:
    """Make the metadata; of the sampling parameters those that all requests share."""
    shared: dict[str, Any] = {}
    for name, kind in KINDS.items():
        values = [next((each[key] for key in (name, *NAMES.get(name, ())) if key in each), None) for each in requests]
        if not values or any(each != values[0] for each in values):
            continue
        try:
            value: float = converted(values[0], kind)
        except Unlike:
            continue  # what no engine takes is no parameter
        shared[name] = max(0, value) if name in ("top_k", "max_tokens") else value  # top_k -1: off
    return Metadata(model=model, engine=Side(engine), sampling=Sampling(**shared), source=f"answers of {engine}")
