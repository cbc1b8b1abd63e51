"""What SGLang says of given tokens, what it samples, and what becomes of requests that run when the weights change."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

from . import plane

Private = Callable[[str], str]
"""Returns a path that was not used before."""


def score(engine: Any, sequences: list[list[int]], decode: int) -> list[dict[str, Any]]:
    """Return the logprobs of prompts, and what greedy decoding adds.

    Decoding comes first: it reads the prefix cache as it was left, whereas prompt logprobs pass it by and fill it.
    """
    found: list[dict[str, Any]] = [{} for _ in sequences]
    if decode:
        greedy = {"temperature": 0, "max_new_tokens": decode, "ignore_eos": True}
        for each, done in zip(found, _asked(engine, sequences, greedy)):
            meta = done["meta_info"]
            each.update(decoded=done["output_ids"], decode=_values(meta), cached=meta["cached_tokens"])
    one = {"temperature": 0, "max_new_tokens": 1}
    for each, done in zip(found, _asked(engine, sequences, one, logprob_start_len=0)):
        each["prompt"] = [value for value, *_ in done["meta_info"]["input_token_logprobs"][1:]]
    return found


def read(engine: Any, text: str, messages: list[dict[str, str]]) -> dict[str, list[int]]:
    """Return the tokens that SGLang makes of a text (as /generate takes it), and of a conversation (as /tokenize says it)."""
    from sglang.srt.entrypoints.openai.protocol import TokenizeRequest
    from sglang.srt.entrypoints.openai.serving_tokenize import OpenAIServingTokenize

    one = {"temperature": 0, "max_new_tokens": 1}
    done = engine.generate(prompt=[text], sampling_params=one, return_logprob=True, logprob_start_len=0)[0]
    serving = OpenAIServingTokenize(engine.tokenizer_manager, engine.template_manager)
    chat = serving._tokenize_chat_request(TokenizeRequest(messages=messages))
    return {"text": [token for _, token, *_ in done["meta_info"]["input_token_logprobs"]], "chat": list(chat)}


def full(engine: Any, sequences: list[list[int]], vocabulary: int, path: str) -> None:
    """Write the logprobs of every token of the vocabulary after each token but the last: "0" [tokens - 1, vocabulary], …"""
    import torch

    one = {"temperature": 0, "max_new_tokens": 1}
    found = {}
    for number, tokens in enumerate(sequences):
        done = _asked(engine, [tokens], one, logprob_start_len=0, top_logprobs_num=vocabulary)[0]
        rows = done["meta_info"]["input_top_logprobs"][1:]
        table = torch.full((len(rows), vocabulary), float("-inf"))
        for row, said in enumerate(rows):
            table[row, [token for _, token, *_ in said]] = torch.tensor([value for value, *_ in said])
        found[str(number)] = table
    plane.put(found, {"plane": "file", "path": path})


def followed(
    engine: Any, prompts: list[list[int]], wanted: list[list[int]], private: Private, ignore_eos: bool
) -> list[dict[str, Any]]:
    """Have these tokens decoded after the prompts, one by one; logprobs are those before they were forced."""
    from .sglang_forced import Forced

    if getattr(engine.server_args, "speculative_algorithm", None):
        raise RuntimeError("SGLang cannot be made to follow tokens while others are proposed to it")
    chunk = getattr(engine.server_args, "chunked_prefill_size", None) or 0
    if not engine.server_args.disable_overlap_schedule and 0 < chunk < max(map(len, prompts)):
        raise RuntimeError("SGLang cannot be made to follow tokens after a prompt in pieces while it plans ahead")
    notes = [private("notes") for _ in prompts]
    settings = [
        {
            "temperature": 0,
            "max_new_tokens": len(tokens),
            "ignore_eos": ignore_eos,
            "custom_params": {"forced": tokens, "notes": path},
        }
        for tokens, path in zip(wanted, notes)
    ]
    done = _asked(engine, prompts, settings, custom_logit_processor=[Forced.to_str()] * len(prompts))
    found = [_told(each) for each in done]
    for each, path in zip(found, notes):
        with open(path, encoding="utf-8") as file:
            each["logprobs"] = [float(line) for line in file]
        os.remove(path)
    return found


def generate(
    engine: Any, prompts: list[list[int]], samplings: list[dict[str, Any]], salt: str, seed: Callable[[int], None]
) -> list[dict[str, Any]]:
    """Return one response for each prompt; samplings: fields of ckptcheck/engines/sampling.py, one for each.

    Seeded requests run one after the other, for SGLang's CPU sampler has one source of chance.
    """
    more = {"cache_salt": salt} if salt else {}
    settings = [_settings(each) for each in samplings]
    if all(each.get("seed") is None for each in samplings):
        return [_told(done) for done in _asked(engine, prompts, settings, **more)]
    found = []
    for prompt, each, setting in zip(prompts, samplings, settings):
        if each.get("seed") is not None:
            seed(each["seed"])
        found += [_told(done) for done in _asked(engine, [prompt], [setting], **more)]
    return found


async def inflight(
    engine: Any,
    prompts: list[list[int]],
    samplings: list[dict[str, Any]],
    pause: str,
    after: int,
    update: Callable[[], Coroutine[Any, Any, dict[str, Any]]],
) -> dict[str, Any]:
    """Update the weights once the first request has `after` tokens, and let what is left of the requests go on.

    pause: SGLang's word, retract, in_place or abort; wait does not pause, and the update then waits for the requests.
    """
    from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput

    manager, begun = engine.tokenizer_manager, asyncio.Event()
    running = [
        asyncio.ensure_future(_streamed(engine, tokens, _settings(each), after, begun))
        for tokens, each in zip(prompts, samplings)
    ]
    await begun.wait()
    if pause != "wait":
        await manager.pause_generation(PauseGenerationReqInput(mode=pause))
    answer = await update()
    if pause != "wait":
        await manager.continue_generation(ContinueGenerationReqInput())
    return {"answer": answer, "generations": [_told(await each) for each in running]}


async def _streamed(
    engine: Any, tokens: list[int], settings: dict[str, Any], after: int, begun: asyncio.Event
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        async for found in await engine.async_generate(
            input_ids=tokens, sampling_params=settings, return_logprob=True, stream=True
        ):
            if len(found["output_ids"]) >= after:
                begun.set()
    finally:
        begun.set()  # it ended earlier than that
    return found


def _settings(each: dict[str, Any]) -> dict[str, Any]:
    return {
        "temperature": each.get("temperature", 1.0),
        "top_p": each.get("top_p", 1.0),
        "top_k": each.get("top_k") or -1,
        "max_new_tokens": each.get("max_tokens", 16),
        "ignore_eos": each.get("ignore_eos", False),
    }


def _told(done: dict[str, Any]) -> dict[str, Any]:
    meta, tokens = done["meta_info"], list(done["output_ids"])
    versions = [str(meta.get("weight_version"))] * len(tokens)
    for span in meta.get("weight_versions") or ():
        versions[span["start"] : span["end"]] = [span["version"]] * (span["end"] - span["start"])
    return {
        "tokens": tokens,
        "logprobs": _values(meta),
        "finish": (meta.get("finish_reason") or {}).get("type", ""),
        "versions": versions,
        "cached": meta.get("cached_tokens", 0),
    }


def _values(meta: dict[str, Any]) -> list[float]:
    return [value for value, *_ in meta.get("output_token_logprobs") or ()]


def _asked(engine: Any, prompts: list[list[int]], settings: Any, **more: Any) -> list[dict[str, Any]]:
    return list(engine.generate(input_ids=prompts, sampling_params=settings, return_logprob=True, **more))
