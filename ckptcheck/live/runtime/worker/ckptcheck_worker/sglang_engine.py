"""The functions of the SGLang worker: one engine at a time, its scheduler and detokenizer in processes of their own.

A tensor that does not fit kills SGLang's scheduler, and the scheduler kills the process that started it; so this process dies too,
and its supervisor ends the rest. Read against SGLang 0.5.23; the code skips calls that 0.5.17 lacks.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from typing import Any

from . import (
    ipc,
    sglang_generate,
    sglang_launch,
    sglang_options,
    sglang_plugins,
    sglang_update,
)
from .engine_half import build_methods

PACKAGE = __name__.rpartition(".")[0]
PLUGINS = {"look": f"{PACKAGE}.sglang_worker:register", "loads": f"{PACKAGE}.sglang_plugins:keep_load_files"}
PLAIN_PLUGINS = {
    "integers": f"{PACKAGE}.sglang_cpu_kernels:register_integers",
    "eight": f"{PACKAGE}.sglang_cpu_kernels:register_eight_bits",
    "unpinned": f"{PACKAGE}.sglang_cpu_kernels:register_unpinned",
}
IDLE_TIMEOUT = 30.0
"""Seconds in which a scheduler that has answered becomes idle."""
_running: dict[str, Any] = {}
_adapters: set[str] = set()
"""Names of the loaded LoRA adapters."""


def prepare() -> None:
    """Import what `start` needs. SGLang reads its plugins later, when an engine is made."""
    import torch
    import transformers  # noqa: F401

    if not torch.cuda.is_available():
        sglang_launch.import_modules()


def start(
    model: str,
    dtype: str,
    ranks: int,
    plain: bool,
    context_len: int,
    tokens: int,
    switches: dict[str, Any],
    options: dict[str, Any],
) -> dict[str, Any]:
    """Load a checkpoint.

    context_len: tokens of the longest sequence, decoded tokens included. tokens: of the KV cache. switches: see sglang_options.py.
    options: further arguments of sglang.Engine.
    """
    stop()
    prepare()
    folder = _running.setdefault("folder", tempfile.mkdtemp(dir=os.getcwd()))
    if "plain" not in _running:
        _running["plain"] = plain
        os.environ[sglang_plugins.FOLDER_VARIABLE] = folder
        sglang_plugins.install_plugins(folder, {**PLUGINS, **(PLAIN_PLUGINS if plain else {})})
    if _running["plain"] != plain:
        raise ValueError("a process of SGLang keeps its mode, plain or stock: start a new one for the other")
    arguments = sglang_launch.arguments(model, dtype, ranks, context_len, tokens, switches, options)
    import sglang

    engine = sglang.Engine(**arguments)
    _running.update(engine=engine, updates=0, logprobs=switches.get("logprobs", "raw"))
    _running["stock_logprobs"] = call_ranks("set_logprobs_mode", [_running["logprobs"]])[0]
    return _describe(engine)


def _describe(engine: Any) -> dict[str, Any]:
    import sglang

    names = ("device", "attention_backend", "disable_cuda_graph", "page_size", "tp_size")
    model, nccl = engine.tokenizer_manager.model_config, ipc.nccl_version()
    return {
        "version": sglang.__version__,
        "dtype": str(model.dtype).rpartition(".")[2],
        "ranks": int(_argument("tp_size")),
        "architecture": (model.hf_config.architectures or [""])[0],
        "facts": {
            **{name: str(_argument(name)) for name in names},
            "mode": "plain" if _running["plain"] and str(_argument("device")) == "cpu" else "stock",
            "quantization": str(model.quantization),
            "stock_logprobs": str(_running["stock_logprobs"]),
            "block_size": str(_argument("page_size") or 1),
            "sleep": str(_argument("enable_memory_saver")),
            "redundant_experts": str(_argument("ep_num_redundant_experts") or 0),
            "follows": str(not _argument("speculative_algorithm")),
            "draft": sglang_options.draft_kind(_argument),
            "session": str(sglang_update.has_session()),
            **({"nccl": nccl} if nccl else {}),
            "gpus": ",".join(gpu for gpu in call_ranks("gpu_uuid", []) if gpu),
        },
        "switches": sglang_options.applied_switches(_argument, _running["logprobs"]),
    }


def _argument(name: str) -> Any:
    """Return an argument of SGLang as SGLang resolved it; if this SGLang does not report that, as given."""
    engine = _engine()
    try:
        return engine.tokenizer_manager.config_value(name)
    except (AttributeError, KeyError, ValueError):
        return getattr(engine.server_args, name, None)


def stop() -> None:
    """End the engine and its processes; does nothing if no engine runs."""
    engine = _running.pop("engine", None)
    _adapters.clear()
    if engine is not None:
        engine.shutdown()


def call_ranks(method: str, arguments: list[Any]) -> list[Any]:
    """Call a method of sglang_worker on every rank and return the results."""
    path = _new_path(method)
    request = json.dumps({"method": method, "arguments": arguments, "path": path})
    _engine().collective_rpc("ckptcheck", request=request)
    results = []
    for rank in range(int(_argument("tp_size"))):
        with open(f"{path}.{rank}", encoding="utf-8") as file:
            answer = json.load(file)
        os.remove(f"{path}.{rank}")
        if "error" in answer:
            raise RuntimeError(f"rank {rank}: {answer['error']}")
        results.append(answer["result"])
    return results


def _new_path(name: str) -> str:
    """Return a path that was not used before."""
    _running["files"] = _running.get("files", 0) + 1
    return os.path.join(_running["folder"], f"{name}-{_running['files']}")


def update_weights(
    buckets: list[dict[str, Any]], transport: str, flush: bool, version: str | None = None
) -> dict[str, Any]:
    """Update the weights by a transport (sglang_update.py); return the result.

    flush: flush the cache with the last bucket. version: of the weights, None for the next number.
    """
    _wait_until_idle()
    _running["updates"] += 1
    chosen = str(_running["updates"]) if version is None else version
    return dict(_run(_update(buckets, transport, flush, chosen)))


def update_draft(buckets: list[dict[str, Any]], transport: str) -> dict[str, Any]:
    """Update the draft model with weights from files, in a session of its own; return the result."""
    _wait_until_idle()
    update = sglang_update.Update(buckets, True, weight_version(), _new_path("checkpoint"), lambda: None, "draft")
    return dict(_run(sglang_update.run_update(_engine(), transport, update)))


def end_update() -> None:
    """End an update that a failure left open."""
    _run(sglang_update.end_update(_engine()))


async def _update(buckets: list[dict[str, Any]], transport: str, flush: bool, version: str) -> dict[str, Any]:
    def wait_in_group() -> None:
        call_ranks("wait_in_group", [str(buckets[0]["address"]["key"])])

    # no trainer sends a draft model's weights among the policy's
    selector = "target" if sglang_options.draft_kind(_argument) and sglang_update.has_session() else "all"
    update = sglang_update.Update(buckets, flush, version, _new_path("checkpoint"), wait_in_group, selector)
    return await sglang_update.run_update(_engine(), transport, update)


def update_inflight(
    prompts: list[list[int]],
    samplings: list[dict[str, Any]],
    pause: str,
    clear_cache: bool,
    after: int,
    buckets: list[dict[str, Any]],
    transport: str,
    version: str,
) -> dict[str, Any]:
    """Update the weights by a transport while requests run."""

    async def update() -> dict[str, Any]:
        return await _update(buckets, transport, clear_cache, version)

    return dict(_run(sglang_generate.update_inflight(_engine(), prompts, samplings, pause, after, update)))


def _run(coroutine: Any) -> Any:
    return _engine().loop.run_until_complete(coroutine)


def load_adapter(name: str, path: str, update: str) -> None:
    """Load an adapter, or another one under the same name.

    update: reload unloads the one before; same loads without that, which SGLang refuses. Raises RuntimeError for a refusal.
    """
    _wait_until_idle()
    if update == "inplace":
        raise RuntimeError("SGLang cannot replace an adapter in place: unload it and load the new one (reload)")
    results = [_engine().unload_lora_adapter(name)] if name in _adapters and update == "reload" else []
    results.append(_engine().load_lora_adapter(name, path))
    for result in results:
        if not result.success:
            raise RuntimeError(str(result.error_message))
    _adapters.add(name)


def digest_adapter(name: str) -> list[Any]:
    """Digest the tensors of an adapter on every rank."""
    return call_ranks("digest_adapter", [name])


def score_by_decode(sequences: list[list[int]], prompt: int) -> list[list[float]]:
    """Return the logprobs of the tokens after the first `prompt` ones, each from a decode step."""
    prompts, responses = [tokens[:prompt] for tokens in sequences], [tokens[prompt:] for tokens in sequences]
    generations = sglang_generate.force_decode(_engine(), prompts, responses, _new_path, ignore_eos=True)
    return [generation["logprobs"] for generation in generations]


def force_decode(prompt: list[int], tokens: list[int]) -> dict[str, Any]:
    """Force SGLang to decode these tokens after the prompt, until SGLang itself stops."""
    return sglang_generate.force_decode(_engine(), [prompt], [tokens], _new_path, ignore_eos=False)[0]


def generate(prompts: list[list[int]], samplings: list[dict[str, Any]], salt: str) -> list[dict[str, Any]]:
    """Return a response for each prompt."""

    def seed_sampler(number: int) -> None:
        call_ranks("seed_sampler", [number])

    return sglang_generate.generate(_engine(), prompts, samplings, salt, seed_sampler)


def reset_prefix_cache() -> None:
    """Drop all cached keys and values."""
    _wait_until_idle()
    if not (result := _engine().flush_cache()).success:
        raise RuntimeError(f"SGLang did not flush its cache: {result}")


def _wait_until_idle() -> None:
    """Wait until the scheduler has cleaned up after its answers: until then it refuses to flush its cache."""
    deadline = time.monotonic() + IDLE_TIMEOUT
    while not all(call_ranks("is_idle", [])) and time.monotonic() < deadline:
        time.sleep(0.01)


def weight_version(value: str | None = None) -> str:
    """Return the weight version; set it first if a value is given."""
    return str(_run(sglang_update.weight_version(_engine(), value)))


def sleep(tags: list[str] | None) -> None:
    """Make the engine release its device memory (release_memory_occupation). A busy engine would die."""
    _wait_until_idle()
    _engine().release_memory_occupation(tags)


def wake(tags: list[str] | None) -> None:
    """Make the engine take its memory back (resume_memory_occupation)."""
    _engine().resume_memory_occupation(tags)


def _engine() -> Any:
    if "engine" not in _running:
        raise LookupError("no engine is running")
    return _running["engine"]


OF_THE_ENGINE = (
    sglang_generate.respond,
    sglang_generate.score_full_vocab,
    sglang_generate.acceptance_length,
    sglang_generate.tokenize,
)
RPC_METHODS = build_methods(_engine, OF_THE_ENGINE, [
    prepare,
    start,
    stop,
    call_ranks,
    update_weights,
    update_draft,
    end_update,
    update_inflight,
    score_by_decode,
    generate,
    force_decode,
    reset_prefix_cache,
    load_adapter,
    digest_adapter,
    weight_version,
    sleep,
    wake,
])  # fmt: skip
