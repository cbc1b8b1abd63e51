"""Generates with SGLang, scores and forces tokens, and updates the weights while requests run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

from . import tensor_files

NewPath = Callable[[str], str]
"""Returns a path that was not used before."""
ONE_TOKEN = {"temperature": 0, "max_new_tokens": 1}


def respond(
    engine: Any, prompts: list[list[int]], sampling: dict[str, Any], adapter: str, scores_prompts: bool
) -> list[dict[str, Any]]:
    """Return a response for each prompt; see `engine_half.build_methods`."""
    lora = {"lora_path": [adapter] * len(prompts)} if adapter else {}
    scored = {"logprob_start_len": 0} if scores_prompts else {}
    return [_generation(output) for output in _generate(engine, prompts, _settings(sampling), **scored, **lora)]


def tokenize(engine: Any, text: str, messages: list[dict[str, str]]) -> dict[str, list[int]]:
    """Return SGLang's own tokens of a text (as /generate takes it), and of a conversation (as /tokenize returns them)."""
    from sglang.srt.entrypoints.openai.protocol import TokenizeRequest
    from sglang.srt.entrypoints.openai.serving_tokenize import OpenAIServingTokenize

    output = engine.generate(prompt=[text], sampling_params=ONE_TOKEN, return_logprob=True, logprob_start_len=0)[0]
    serving = OpenAIServingTokenize(engine.tokenizer_manager, engine.template_manager)
    chat = serving._tokenize_chat_request(TokenizeRequest(messages=messages))
    return {"text": [token for _, token, *_ in output["meta_info"]["input_token_logprobs"]], "chat": list(chat)}


def score_full_vocab(engine: Any, sequences: list[list[int]], path: str) -> None:
    """Write the logprobs of the whole vocabulary after each token but the last: "0" [tokens - 1, vocabulary], …"""
    import torch

    vocabulary = engine.tokenizer_manager.model_config.vocab_size
    tables = {}
    for number, tokens in enumerate(sequences):
        output = _generate(engine, [tokens], ONE_TOKEN, logprob_start_len=0, top_logprobs_num=vocabulary)[0]
        rows = output["meta_info"]["input_top_logprobs"][1:]
        table = torch.full((len(rows), vocabulary), float("-inf"))
        for number_of_row, row in enumerate(rows):
            table[number_of_row, [token for _, token, *_ in row]] = torch.tensor([value for value, *_ in row])
        tables[str(number)] = table
    tensor_files.write_tensors(tables, {"kind": "file", "path": path})


def acceptance_length(engine: Any, prompts: list[list[int]], tokens: int) -> float:
    """Return the tokens per decode step over greedy responses, one request at a time: 1 without accepted proposals."""
    settings = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    decoded = steps = 0
    for prompt in prompts:
        output = _generate(engine, [prompt], settings)[0]
        # the prefill gives the first token
        decoded, steps = decoded + len(output["output_ids"]) - 1, steps + output["meta_info"].get("spec_verify_ct", 0)
    return decoded / steps if steps else 1.0


def force_decode(
    engine: Any, prompts: list[list[int]], responses: list[list[int]], new_path: NewPath, ignore_eos: bool
) -> list[dict[str, Any]]:
    """Force SGLang to decode these responses to the prompts, token by token; the logprobs come from before forcing."""
    from .sglang_force_tokens import ForceTokens

    if getattr(engine.server_args, "speculative_algorithm", None):
        raise RuntimeError("SGLang cannot be forced to decode given tokens while speculative decoding proposes others")
    chunk = getattr(engine.server_args, "chunked_prefill_size", None) or 0
    if not engine.server_args.disable_overlap_schedule and 0 < chunk < max(map(len, prompts)):
        raise RuntimeError(
            "SGLang cannot be forced to decode given tokens after a chunked prompt while it overlaps scheduling"
        )
    notes = [new_path("notes") for _ in prompts]
    settings = [
        {
            "temperature": 0,
            "max_new_tokens": len(tokens),
            "ignore_eos": ignore_eos,
            "custom_params": {"forced": tokens, "notes": path},
        }
        for tokens, path in zip(responses, notes)
    ]
    processors = [ForceTokens.to_str()] * len(prompts)
    generations = [
        _generation(output) for output in _generate(engine, prompts, settings, custom_logit_processor=processors)
    ]
    for generation, path in zip(generations, notes):
        with open(path, encoding="utf-8") as file:
            generation["logprobs"] = [float(line) for line in file]
        os.remove(path)
    return generations


def generate(
    engine: Any,
    prompts: list[list[int]],
    samplings: list[dict[str, Any]],
    salt: str,
    seed_sampler: Callable[[int], None],
) -> list[dict[str, Any]]:
    """Return one response for each prompt. samplings: fields of `Sampling` in ckptcheck/live/runtime/engines/sampling.py.

    Seeded requests run one after the other, because SGLang's CPU sampler has one random generator.
    """
    more = {"cache_salt": salt} if salt else {}
    settings = [_settings(sampling) for sampling in samplings]
    if all(sampling.get("seed") is None for sampling in samplings):
        return [_generation(output) for output in _generate(engine, prompts, settings, **more)]
    generations = []
    for prompt, sampling, setting in zip(prompts, samplings, settings):
        if sampling.get("seed") is not None:
            seed_sampler(sampling["seed"])
        generations += [_generation(output) for output in _generate(engine, [prompt], [setting], **more)]
    return generations


async def update_inflight(
    engine: Any,
    prompts: list[list[int]],
    samplings: list[dict[str, Any]],
    pause: str,
    after: int,
    update: Callable[[], Coroutine[Any, Any, dict[str, Any]]],
) -> dict[str, Any]:
    """Update the weights once the first request has `after` tokens, and let the requests go on.

    pause: SGLang's mode, retract, in_place or abort; wait does not pause, and the update then waits for the requests.
    """
    from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput

    manager, has_enough_tokens = engine.tokenizer_manager, asyncio.Event()
    requests = [
        asyncio.ensure_future(_stream(engine, tokens, _settings(sampling), after, has_enough_tokens))
        for tokens, sampling in zip(prompts, samplings)
    ]
    await has_enough_tokens.wait()
    if pause != "wait":
        await manager.pause_generation(PauseGenerationReqInput(mode=pause))
    result = await update()
    if pause != "wait":
        await manager.continue_generation(ContinueGenerationReqInput())
    return {"update": result, "generations": [_generation(await request) for request in requests]}


async def _stream(
    engine: Any, tokens: list[int], settings: dict[str, Any], after: int, has_enough_tokens: asyncio.Event
) -> dict[str, Any]:
    """Run one request; set the event at `after` tokens, or when the request ends earlier."""
    output: dict[str, Any] = {}
    try:
        async for output in await engine.async_generate(
            input_ids=tokens, sampling_params=settings, return_logprob=True, stream=True
        ):
            if len(output["output_ids"]) >= after:
                has_enough_tokens.set()
    finally:
        has_enough_tokens.set()
    return output


def _settings(sampling: dict[str, Any]) -> dict[str, Any]:
    return {
        "temperature": sampling.get("temperature", 1.0),
        "top_p": sampling.get("top_p", 1.0),
        "top_k": sampling.get("top_k") or -1,
        "max_new_tokens": sampling.get("max_tokens", 16),
        "ignore_eos": sampling.get("ignore_eos", False),
        "presence_penalty": sampling.get("presence_penalty", 0.0),
        "frequency_penalty": sampling.get("frequency_penalty", 0.0),
        "repetition_penalty": sampling.get("repetition_penalty", 1.0),
    }


def _generation(output: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `Generation` from a request's output."""
    meta, tokens = output["meta_info"], list(output["output_ids"])
    versions = [str(meta.get("weight_version"))] * len(tokens)
    for span in meta.get("weight_versions") or ():
        versions[span["start"] : span["end"]] = [span["version"]] * (span["end"] - span["start"])
    return {
        "tokens": tokens,
        "logprobs": _logprobs(meta),
        "finish_reason": (meta.get("finish_reason") or {}).get("type", ""),
        "weight_versions": versions,
        "cached_tokens": meta.get("cached_tokens", 0),
        "prompt_logprobs": [value for value, *_ in (meta.get("input_token_logprobs") or ())[1:]],
    }


def _logprobs(meta: dict[str, Any]) -> list[float]:
    return [value for value, *_ in meta.get("output_token_logprobs") or ()]


def _generate(engine: Any, prompts: list[list[int]], settings: Any, **more: Any) -> list[dict[str, Any]]:
    return list(engine.generate(input_ids=prompts, sampling_params=settings, return_logprob=True, **more))
