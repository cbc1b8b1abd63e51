"""vLLM behind a host: one engine at a time, started and stopped as often as asked."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import Any

from . import inventory, vllm_generate, vllm_launch, vllm_plain, vllm_switches, vllm_transfer
from .vllm_transfer import answer, told

_running: dict[str, Any] = {}


def start(
    model: str,
    dtype: str,
    ranks: int,
    plain: bool,
    length: int,
    cache_bytes: int,
    switches: dict[str, Any],
    options: dict[str, Any],
    transport: str = "",
) -> dict[str, Any]:
    """Load a checkpoint. dtype: vLLM's word; length: of the longest sequence, with what is decoded; options: of LLM().

    switches: see vllm_switches.py. transport: by which weights will come, "" where that is not known yet.
    """
    stop()
    os.environ[vllm_plain.VARIABLE] = "1" if plain else "0"
    from vllm import LLM

    vllm_plain.settle()
    llm = LLM(**vllm_launch.arguments(model, dtype, ranks, length, cache_bytes, switches, options, transport))
    _running.update(llm=llm, updates=0)
    return _about(llm)


def _about(llm: Any) -> dict[str, Any]:
    import vllm

    config = llm.llm_engine.vllm_config
    model, cache = config.model_config, config.cache_config
    facts = {
        "device": str(config.device_config.device_type),
        "mode": "plain" if vllm_launch.on_cpu() and os.environ[vllm_plain.VARIABLE] == "1" else "stock",
        "prefix_caching": str(cache.enable_prefix_caching),
        "block_size": str(cache.block_size),
        "enforce_eager": str(model.enforce_eager),
        "tensor_parallel_size": str(config.parallel_config.tensor_parallel_size),
        "attention_backend": str(getattr(config.attention_config, "backend", None)),
        "weight_transfer": str(getattr(config.weight_transfer_config, "backend", None)),
        "gpus": ",".join(_gpus(llm)),
        "follows": str(config.speculative_config is None),
        "sleep": str(model.enable_sleep_mode),
        "stock_logprobs": vllm_switches.stock_logprobs(),
    }
    return {
        "version": vllm.__version__,
        "dtype": str(model.dtype).rpartition(".")[2],
        "ranks": config.parallel_config.world_size,
        "architecture": (model.architectures or [""])[0],
        "facts": facts,
        "switches": vllm_switches.resolved(config),
    }


def _gpus(llm: Any) -> list[str]:
    """Return the UUID of every rank's GPU, [] on a CPU."""
    return [] if vllm_launch.on_cpu() else list(llm.collective_rpc("ckptcheck_gpu"))


def stop() -> None:
    """End the engine and give its memory back; nothing happens where none runs."""
    llm = _running.pop("llm", None)
    if llm is None:
        return
    from vllm.distributed import cleanup_dist_env_and_memory

    llm.llm_engine.engine_core.shutdown()
    del llm
    cleanup_dist_env_and_memory()
    gc.collect()


def ask(method: str, arguments: list[Any]) -> list[Any]:
    """Call a method of every worker's extension and return what each said."""
    found: list[Any] = _llm().collective_rpc(f"ckptcheck_{method}", args=tuple(arguments))
    return found


def fetch(wanted: list[list[str]], path: str) -> None:
    """Write tensors of all ranks to one file."""
    inventory.gather(ask, wanted, path)


def load(parcels: list[dict[str, Any]], raw: bool) -> dict[str, Any]:
    """Update the weights from parcels by reload_weights, or raw by the model's load_weights; say what came of it."""
    begin = time.perf_counter()
    try:
        said = ask("load", [parcels, raw])
    except Exception as error:
        return answer(begin, told(error))
    errors = [f"rank {each['rank']}: {each['error']}" for each in said if "error" in each]
    return answer(begin, "; ".join(errors), returned=said[0].get("returned"))


def transfer(parcels: list[dict[str, Any]]) -> dict[str, Any]:
    """Update the weights by the weight-transfer API; say what came of it."""
    said = vllm_transfer.transfer(_llm(), ask, parcels, str(_running["updates"] + 1))
    _running["updates"] += said["ok"]
    return said


def score(sequences: list[list[int]], decode: int) -> list[dict[str, Any]]:
    """Return the logprobs of prompts, and what greedy decoding adds.

    Decoding comes first: it reads the prefix cache as it was left, whereas prompt logprobs pass it by and fill it.
    """
    from vllm import SamplingParams

    found: list[dict[str, Any]] = [{} for _ in sequences]
    if decode:
        settings = SamplingParams(max_tokens=decode, temperature=0, logprobs=0, ignore_eos=True, detokenize=False)
        for each, request in zip(found, _generate(sequences, [settings] * len(sequences))):
            decoded = list(request.outputs[0].token_ids)
            each.update(decoded=decoded, decode=_logprobs(request), cached=request.num_cached_tokens or 0)
    settings = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False)
    for each, tokens, request in zip(found, sequences, _generate(sequences, [settings] * len(sequences))):
        each["prompt"] = [row[token].logprob for token, row in zip(tokens[1:], request.prompt_logprobs[1:])]
    return found


def follow(sequences: list[list[int]], prompt: int) -> list[list[float]]:
    """Return the logprobs of the tokens after the first `prompt` ones, each computed by a step of decoding."""
    from vllm import SamplingParams

    if _llm().llm_engine.vllm_config.speculative_config is not None:
        raise RuntimeError("vLLM cannot be made to follow tokens while a draft model proposes them")

    settings = [
        SamplingParams(
            max_tokens=len(tokens) - prompt,
            temperature=0,
            logprobs=0,
            ignore_eos=True,
            detokenize=False,
            extra_args={"forced": tokens[prompt:], "after": prompt},
        )
        for tokens in sequences
    ]
    return [_logprobs(request) for request in _generate([tokens[:prompt] for tokens in sequences], settings)]


def inflight(
    prompts: list[list[int]],
    samplings: list[dict[str, Any]],
    pause: str,
    clear_cache: bool,
    after: int,
    parcels: list[dict[str, Any]],
    version: str,
) -> dict[str, Any]:
    """Update the weights while requests are running."""
    return vllm_generate.inflight(
        _llm(), prompts, samplings, pause, clear_cache, after, lambda: load(parcels, raw=False), version
    )


def routes(tokens: list[int]) -> list[list[list[int]]]:
    """Return the experts that each token of a sequence went to: layers, tokens, choices. [] where nothing can tell."""
    ask("watch", [True])
    try:
        score([tokens], 0)
    finally:
        seen = ask("watch", [False])[0]
    return [[row for piece in layer for row in piece] for layer in seen]


def _logprobs(request: Any) -> list[float]:
    output = request.outputs[0]
    return [each[token].logprob for token, each in zip(output.token_ids, output.logprobs)]


def _generate(sequences: list[list[int]], settings: list[Any]) -> list[Any]:
    prompts = [{"prompt_token_ids": tokens} for tokens in sequences]
    return list(_llm().generate(prompts, settings, use_tqdm=False))


def capture(tokens: list[int], path: str) -> list[dict[str, Any]]:
    """Keep what every module gives out while a prompt is prefilled, in a file for each rank."""
    from vllm import SamplingParams

    reset_prefix_cache()
    ask("listen", [len(tokens)])
    try:
        _generate([tokens], [SamplingParams(max_tokens=1, temperature=0, detokenize=False)])
    finally:
        heard = ask("heard", [path])
    return heard


def reset_prefix_cache() -> bool:
    """Forget cached keys and values; return whether it could."""
    return bool(_llm().reset_prefix_cache())


def version(value: str | None = None) -> str:
    """Return the weight version, set first where a value is given."""
    if value is not None:
        _llm().update_weight_version(value)
    return str(_llm().get_weight_version())


def sleep(level: int) -> None:
    """Have the engine give its device memory away; 1 keeps the weights on the host, 2 drops them."""
    _llm().sleep(level=level)


def wake(tags: list[str] | None) -> None:
    """Have it take the memory again; tags: only that of weights or kv_cache."""
    _llm().wake_up(tags)


def _llm() -> Any:
    if "llm" not in _running:
        raise LookupError("no engine is running")
    return _running["llm"]


def _serving(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a function of vllm_generate the engine that runs."""
    return lambda **arguments: function(_llm(), **arguments)


VERBS = {
    function.__name__: function
    for function in (
        *(start, stop, ask, fetch, load, transfer, score, follow, capture, inflight, routes),
        *(reset_prefix_cache, version, sleep, wake),
    )
} | {name: _serving(getattr(vllm_generate, name)) for name in ("generate", "forced", "full", "read")}
