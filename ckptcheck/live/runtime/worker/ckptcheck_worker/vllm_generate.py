"""Generates with vLLM, forces tokens, and updates the weights while requests run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import tensor_files


def generate(llm: Any, prompts: list[list[int]], samplings: list[dict[str, Any]], salt: str) -> list[dict[str, Any]]:
    """Return one response for each prompt. samplings: fields of `Sampling` in ckptcheck/live/runtime/engines/sampling.py.

    If vLLM cannot seed a request (see `_cannot_seed`), the requests run one after the other, and each seeds the
    sampler.
    """
    inputs = [_prompt(tokens, salt) for tokens in prompts]
    if _cannot_seed(llm, prompts) and any(sampling.get("seed") is not None for sampling in samplings):
        outputs = []
        for prompt, sampling in zip(inputs, samplings):
            if sampling.get("seed") is not None:
                llm.collective_rpc("ckptcheck_seed_sampler", args=(sampling["seed"],))
            outputs += llm.generate([prompt], [_settings({**sampling, "seed": None})], use_tqdm=False)
    else:
        outputs = llm.generate(inputs, [_settings(sampling) for sampling in samplings], use_tqdm=False)
    return [_generation(output) for output in outputs]


def _cannot_seed(llm: Any, prompts: list[list[int]]) -> bool:
    """Return whether vLLM computes the prompts in chunks on a CPU: vLLM 0.32 then rewinds a request's generator, and crashes."""
    config = llm.llm_engine.vllm_config
    max_tokens: int = config.scheduler_config.max_num_batched_tokens
    return config.device_config.device_type == "cpu" and sum(map(len, prompts)) > max_tokens


def acceptance_length(llm: Any, prompts: list[list[int]], tokens: int) -> float:
    """Return the tokens per decode step over greedy responses, one request at a time: 1 without accepted proposals."""
    engine, steps, decoded = llm.llm_engine, 0, 0
    for number, prompt in enumerate(prompts):
        # caches of earlier prompts change no step: a request's first step is its prefill
        engine.add_request(
            f"acceptance-{number}",
            _prompt(prompt),
            _settings({"temperature": 0.0, "max_tokens": tokens, "ignore_eos": True}),
        )
        outputs: dict[int, int] = {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                length = len(output.outputs[0].token_ids)
                outputs.setdefault(length, length)
        lengths = sorted(outputs)
        steps, decoded = steps + len(lengths) - 1, decoded + lengths[-1] - lengths[0]
    return decoded / steps if steps else 1.0


def respond(
    llm: Any, prompts: list[list[int]], sampling: dict[str, Any], scores_prompts: bool, **options: Any
) -> list[dict[str, Any]]:
    """Return a response for each prompt, with its prompt_logprobs if asked for. options: further arguments of LLM.generate."""
    settings = _settings(sampling, **({"prompt_logprobs": 0} if scores_prompts else {}))
    inputs = [_prompt(tokens) for tokens in prompts]
    outputs = llm.generate(inputs, [settings] * len(inputs), use_tqdm=False, **options)
    return [_generation(output) for output in outputs]


def score_by_decode(llm: Any, sequences: list[list[int]], prompt: int) -> list[list[float]]:
    """Return the logprobs of the tokens after the first `prompt` ones, each from a decode step."""
    if llm.llm_engine.vllm_config.speculative_config is not None:
        raise RuntimeError("vLLM cannot be forced to decode given tokens while a draft model proposes others")
    settings = [
        _settings(
            {"temperature": 0.0, "max_tokens": len(tokens) - prompt, "ignore_eos": True},
            extra_args={"forced": tokens[prompt:], "after": prompt},
        )
        for tokens in sequences
    ]
    outputs = llm.generate([_prompt(tokens[:prompt]) for tokens in sequences], settings, use_tqdm=False)
    return [_generation(output)["logprobs"] for output in outputs]


def force_decode(llm: Any, prompt: list[int], tokens: list[int]) -> dict[str, Any]:
    """Force vLLM to decode these tokens after the prompt, one by one, until vLLM itself stops: at an end token."""
    settings = _settings(
        {"temperature": 0.0, "max_tokens": len(tokens)}, extra_args={"forced": tokens, "after": len(prompt)}
    )
    return _generation(llm.generate([_prompt(prompt)], [settings], use_tqdm=False)[0])


def tokenize(llm: Any, text: str, messages: list[dict[str, str]]) -> dict[str, list[int]]:
    """Return vLLM's own tokens of a text, and of a conversation by the chat template."""
    from vllm import SamplingParams

    settings = SamplingParams(max_tokens=1, temperature=0, detokenize=False)
    text_output = llm.generate([text], settings, use_tqdm=False)[0]
    chat_output = llm.chat([messages], settings, use_tqdm=False)[0]
    return {"text": list(text_output.prompt_token_ids), "chat": list(chat_output.prompt_token_ids)}


def score_full_vocab(llm: Any, sequences: list[list[int]], path: str) -> None:
    """Write the logprobs of the whole vocabulary after each token but the last: "0" [tokens - 1, vocabulary], …"""
    import torch
    from vllm import SamplingParams

    settings = SamplingParams(
        max_tokens=1, temperature=0, prompt_logprobs=-1, flat_logprobs=True, detokenize=False, ignore_eos=True
    )
    tables = {}
    for number, tokens in enumerate(sequences):
        logprobs = llm.generate([_prompt(tokens)], [settings], use_tqdm=False)[0].prompt_logprobs
        table = torch.full((len(tokens) - 1, max(logprobs.token_ids) + 1), float("-inf"))
        ids, values = torch.tensor(logprobs.token_ids), torch.tensor(logprobs.logprobs)
        for row, (begin, end) in enumerate(zip(logprobs.start_indices[1:], logprobs.end_indices[1:])):
            table[row, ids[begin:end]] = values[begin:end]
        tables[str(number)] = table
    tensor_files.write_tensors(tables, {"kind": "file", "path": path})


def update_inflight(
    llm: Any,
    prompts: list[list[int]],
    samplings: list[dict[str, Any]],
    pause: str,
    clear_cache: bool,
    after: int,
    update: Callable[[], dict[str, Any]],
    version: str,
) -> dict[str, Any]:
    """Update the weights once the first request has `after` tokens, and let the requests go on.

    pause: vLLM's mode, keep or abort; wait updates after all requests have ended (vLLM refuses its own wait mode in one process,
    where it waits for a drained scheduler); none does not pause.
    """
    engine = llm.llm_engine
    core = engine.engine_core.engine_core
    names = [f"inflight-{version}-{number}" for number in range(len(prompts))]
    for name, tokens, sampling in zip(names, prompts, samplings):
        engine.add_request(name, _prompt(tokens), _settings(sampling))
    outputs: dict[str, Any] = {}
    result: dict[str, Any] | None = None
    while engine.has_unfinished_requests() or result is None:
        for output in engine.step() if engine.has_unfinished_requests() else []:
            outputs[output.request_id] = output
        most_tokens = max((len(output.outputs[0].token_ids) for output in outputs.values()), default=0)
        is_drained = not engine.has_unfinished_requests()
        if result is None and (is_drained if pause == "wait" else most_tokens >= after or is_drained):
            if pause in ("keep", "abort"):
                core.pause_scheduler(pause, clear_cache)
            elif clear_cache:
                llm.reset_prefix_cache()
            result = update()
            if result["ok"]:
                engine.set_weight_version(version)
            if pause == "abort":  # in one process vLLM does not tell its output processor
                engine.abort_request([name for name, output in outputs.items() if not output.finished])
            core.resume_scheduler()
    generations = [_generation(outputs[name]) for name in names]
    for generation in generations:
        if pause == "abort" and not generation["finish_reason"]:
            # the reason that a vLLM server reports
            generation["finish_reason"] = "abort"
    return {"update": result, "generations": generations}


def _prompt(tokens: list[int], salt: str = "") -> dict[str, Any]:
    return {"prompt_token_ids": tokens, **({"cache_salt": salt} if salt else {})}


def _settings(sampling: dict[str, Any], **more: Any) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=sampling.get("temperature", 1.0),
        top_p=sampling.get("top_p", 1.0),
        top_k=sampling.get("top_k", 0),
        max_tokens=sampling.get("max_tokens", 16),
        seed=sampling.get("seed"),
        ignore_eos=sampling.get("ignore_eos", False),
        presence_penalty=sampling.get("presence_penalty", 0.0),
        frequency_penalty=sampling.get("frequency_penalty", 0.0),
        repetition_penalty=sampling.get("repetition_penalty", 1.0),
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.CUMULATIVE,
        **more,
    )


def _generation(request: Any) -> dict[str, Any]:
    """Return the fields of `Generation` from a request's output."""
    output = request.outputs[0]
    tokens = list(output.token_ids)
    versions = ["" for _ in tokens]
    for span in output.weight_versions or ():
        versions[span.start : span.end] = [span.version] * (min(span.end, len(tokens)) - span.start)
    return {
        "tokens": tokens,
        "logprobs": [row[token].logprob for token, row in zip(tokens, output.logprobs or ())],
        "finish_reason": output.finish_reason or "",
        "weight_versions": versions if output.weight_versions else [],
        "cached_tokens": request.num_cached_tokens or 0,
        "prompt_logprobs": [
            row[token].logprob for token, row in zip(request.prompt_token_ids[1:], (request.prompt_logprobs or ())[1:])
        ],
    }
