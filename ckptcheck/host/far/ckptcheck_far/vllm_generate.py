"""What vLLM samples, what it says of it, and what becomes of requests that are running when the weights change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import plane


def generate(llm: Any, prompts: list[list[int]], samplings: list[dict[str, Any]], salt: str) -> list[dict[str, Any]]:
    """Return one response per prompt; samplings: fields of ckptcheck/engines/sampling.py, one for each.

    Where vLLM cannot seed a request (see `_unseeded`), requests run one after the other, and the sampler is seeded for each.
    """
    asked = [_prompt(tokens, salt) for tokens in prompts]
    if _unseeded(llm, prompts) and any(each.get("seed") is not None for each in samplings):
        found = []
        for prompt, each in zip(asked, samplings):
            if each.get("seed") is not None:
                llm.collective_rpc("ckptcheck_seed", args=(each["seed"],))
            found += llm.generate([prompt], [_settings({**each, "seed": None})], use_tqdm=False)
        return [_told(request) for request in found]
    return [_told(request) for request in llm.generate(asked, [_settings(each) for each in samplings], use_tqdm=False)]


def _unseeded(llm: Any, prompts: list[list[int]]) -> bool:
    """Whether prompts are computed in pieces on a CPU: vLLM 0.32 rewinds the generator of a request then, and cannot on a CPU."""
    config = llm.llm_engine.vllm_config
    most: int = config.scheduler_config.max_num_batched_tokens
    return config.device_config.device_type == "cpu" and sum(map(len, prompts)) > most


def forced(llm: Any, prompt: list[int], tokens: list[int]) -> dict[str, Any]:
    """Have these tokens decoded after the prompt, one by one, stopping where the engine would: does an end token end it?"""
    settings = _settings(
        {"temperature": 0.0, "max_tokens": len(tokens)}, extra_args={"forced": tokens, "after": len(prompt)}
    )
    return _told(llm.generate([_prompt(prompt)], [settings], use_tqdm=False)[0])


def read(llm: Any, text: str, messages: list[dict[str, str]]) -> dict[str, list[int]]:
    """Return the tokens that vLLM itself makes of a text, and of a conversation by the chat template."""
    from vllm import SamplingParams

    short = SamplingParams(max_tokens=1, temperature=0, detokenize=False)
    plain = llm.generate([text], short, use_tqdm=False)[0]
    talk = llm.chat([messages], short, use_tqdm=False)[0]
    return {"text": list(plain.prompt_token_ids), "chat": list(talk.prompt_token_ids)}


def full(llm: Any, sequences: list[list[int]], path: str) -> None:
    """Write the logprobs of every token of the vocabulary after each token but the last: "0" [tokens - 1, vocabulary], …"""
    import torch
    from vllm import SamplingParams

    settings = SamplingParams(
        max_tokens=1, temperature=0, prompt_logprobs=-1, flat_logprobs=True, detokenize=False, ignore_eos=True
    )
    found = {}
    for number, tokens in enumerate(sequences):
        said = llm.generate([_prompt(tokens)], [settings], use_tqdm=False)[0].prompt_logprobs
        size = max(said.token_ids) + 1
        table = torch.full((len(tokens) - 1, size), float("-inf"))
        ids, values = torch.tensor(said.token_ids), torch.tensor(said.logprobs)
        for row, (begin, end) in enumerate(zip(said.start_indices[1:], said.end_indices[1:])):
            table[row, ids[begin:end]] = values[begin:end]
        found[str(number)] = table
    plane.put(found, {"plane": "file", "path": path})


def inflight(
    llm: Any,
    prompts: list[list[int]],
    samplings: list[dict[str, Any]],
    pause: str,
    clear_cache: bool,
    after: int,
    update: Callable[[], dict[str, Any]],
    version: str,
) -> dict[str, Any]:
    """Update the weights once the first request has `after` tokens, and let what is left of the requests go on.

    pause: vLLM's word, keep or abort; wait lets them end first, which vLLM itself refuses in one process, and a drained
    scheduler is what it waits for; none does not pause.
    """
    engine = llm.llm_engine
    core = engine.engine_core.engine_core
    for number, (tokens, each) in enumerate(zip(prompts, samplings)):
        engine.add_request(f"inflight-{version}-{number}", _prompt(tokens), _settings(each))
    seen: dict[str, Any] = {}
    said: dict[str, Any] | None = None
    while engine.has_unfinished_requests() or said is None:
        for request in engine.step() if engine.has_unfinished_requests() else []:
            seen[request.request_id] = request
        first = max((len(request.outputs[0].token_ids) for request in seen.values()), default=0)
        drained = not engine.has_unfinished_requests()
        if said is None and (drained if pause == "wait" else first >= after or drained):
            if pause in ("keep", "abort"):
                core.pause_scheduler(pause, clear_cache)
            elif clear_cache:
                llm.reset_prefix_cache()
            said = update()
            if said["ok"]:
                engine.set_weight_version(version)
            if pause == "abort":  # in one process nobody tells the output processor
                engine.abort_request([name for name, request in seen.items() if not request.finished])
            core.resume_scheduler()
    made = [_told(seen[f"inflight-{version}-{number}"]) for number in range(len(prompts))]
    for each in made:
        if pause == "abort" and not each["finish"]:
            each["finish"] = "abort"  # as a server says it
    return {"answer": said, "generations": made}


def _prompt(tokens: list[int], salt: str = "") -> dict[str, Any]:
    return {"prompt_token_ids": tokens, **({"cache_salt": salt} if salt else {})}


def _settings(each: dict[str, Any], **more: Any) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=each.get("temperature", 1.0),
        top_p=each.get("top_p", 1.0),
        top_k=each.get("top_k", 0),
        max_tokens=each.get("max_tokens", 16),
        seed=each.get("seed"),
        ignore_eos=each.get("ignore_eos", False),
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.CUMULATIVE,
        **more,
    )


def _told(request: Any) -> dict[str, Any]:
    output = request.outputs[0]
    tokens = list(output.token_ids)
    versions = ["" for _ in tokens]
    for span in output.weight_versions or ():
        versions[span.start : span.end] = [span.version] * (min(span.end, len(tokens)) - span.start)
    return {
        "tokens": tokens,
        "logprobs": [each[token].logprob for token, each in zip(tokens, output.logprobs or ())],
        "finish": output.finish_reason or "",
        "versions": versions if output.weight_versions else [],
        "cached": request.num_cached_tokens or 0,
    }
