"""The functions of the vLLM worker: one engine at a time, started and stopped as often as the client asks."""

from __future__ import annotations

import gc
import os
from typing import Any

from . import ipc, vllm_generate, vllm_images, vllm_launch, vllm_options, vllm_plain, vllm_update
from .engine_half import build_methods

_running: dict[str, Any] = {}
_adapters: dict[str, Any] = {}
"""Name of a loaded LoRA adapter → the request that serves it."""


def prepare() -> None:
    """Import what `start` needs, before there is a checkpoint: vllm itself imports next to nothing, and LLM() the worker late."""
    from vllm import LLM  # noqa: F401

    from . import vector_math  # noqa: F401

    if vllm_launch.runs_on_cpu():
        import vllm.v1.worker.cpu_worker  # noqa: F401


def start(
    model: str,
    dtype: str,
    ranks: int,
    plain: bool,
    context_len: int,
    cache_bytes: int,
    switches: dict[str, Any],
    options: dict[str, Any],
    transport: str = "",
    sleeps: bool = False,
) -> dict[str, Any]:
    """Load a checkpoint.

    dtype: as vLLM spells it. context_len: tokens of the longest sequence, decoded tokens included. switches: see vllm_options.py.
    options: further arguments of LLM(). transport: by which weights will come; "" if unknown. sleeps: whether the
    engine will be put to sleep.
    """
    stop()
    os.environ[vllm_plain.PLAIN_VARIABLE] = "1" if plain else "0"
    from vllm import LLM

    vllm_plain.apply_plain_mode()
    arguments = vllm_launch.arguments(
        model, dtype, ranks, context_len, cache_bytes, switches, options, transport, sleeps
    )
    llm = LLM(**arguments)
    _running.update(llm=llm, updates=0)
    return _describe(llm)


def _describe(llm: Any) -> dict[str, Any]:
    import vllm

    config = llm.llm_engine.vllm_config
    model, cache = config.model_config, config.cache_config
    facts = {
        "device": str(config.device_config.device_type),
        "mode": "plain" if vllm_launch.runs_on_cpu() and os.environ[vllm_plain.PLAIN_VARIABLE] == "1" else "stock",
        "block_size": str(cache.block_size),
        "enforce_eager": str(model.enforce_eager),
        "disable_cascade_attn": str(getattr(model, "disable_cascade_attn", None)),
        "tensor_parallel_size": str(config.parallel_config.tensor_parallel_size),
        "attention_backend": str(getattr(config.attention_config, "backend", None)),
        "weight_transfer": str(getattr(config.weight_transfer_config, "backend", None)),
        "gpus": ",".join(_gpus(llm)),
        **_nccl_facts(),
        # processed logprobs are taken after the processor that forces a token
        "follows": str(config.speculative_config is None and str(model.logprobs_mode).startswith("raw")),
        "draft": vllm_options.draft_kind(config),
        "redundant_experts": str(vllm_options.redundant_experts(config)),
        "sleep": str(model.enable_sleep_mode),
        **vllm_images.facts(config),
        "stock_logprobs": vllm_options.stock_logprobs(),
    }
    return {
        "version": vllm.__version__,
        "dtype": str(model.dtype).rpartition(".")[2],
        "ranks": config.parallel_config.world_size,
        "architecture": (model.architectures or [""])[0],
        "facts": facts,
        "switches": vllm_options.applied_switches(config),
    }


def _nccl_facts() -> dict[str, str]:
    """Return the facts that decide whether a group over NCCL works; {} on a CPU."""
    if vllm_launch.runs_on_cpu():
        return {}
    return {
        "nccl": ipc.nccl_version(),
        "batch_invariant": str(os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0")),
    }


def _gpus(llm: Any) -> list[str]:
    """Return the UUID of every rank's GPU, [] on a CPU."""
    return [] if vllm_launch.runs_on_cpu() else list(llm.collective_rpc("ckptcheck_gpu_uuid"))


def stop() -> None:
    """End the engine and free its memory; does nothing if no engine runs."""
    llm = _running.pop("llm", None)
    _adapters.clear()
    if llm is None:
        return
    from vllm.distributed import cleanup_dist_env_and_memory

    llm.llm_engine.engine_core.shutdown()
    del llm
    cleanup_dist_env_and_memory()
    gc.collect()


def call_ranks(method: str, arguments: list[Any]) -> list[Any]:
    """Call a method of every worker's extension (vllm_worker.py) and return the results by rank."""
    results: list[Any] = _llm().collective_rpc(f"ckptcheck_{method}", args=tuple(arguments))
    return results


def update_weights(buckets: list[dict[str, Any]], transport: str, version: str | None = None) -> dict[str, Any]:
    """Update the weights by a transport (vllm_update.py); return the result. version: of the weights, None for the next number."""
    chosen = str(_running["updates"] + 1) if version is None else version
    result = vllm_update.TRANSPORTS[transport](_llm(), call_ranks, buckets, chosen)
    # only the weight-transfer API has a version
    _running["updates"] += result["ok"] and "weight_version" in result
    return result


def update_draft(buckets: list[dict[str, Any]], transport: str) -> dict[str, Any]:
    """Update the draft model in a session of its own; return the result."""
    return vllm_update.update_draft(_llm(), call_ranks, buckets, transport)


def end_update() -> None:
    """End an update that a failure left open."""
    vllm_update.end_update(_llm())


def respond(
    prompts: list[list[int]], sampling: dict[str, Any], adapter: str, scores_prompts: bool
) -> list[dict[str, Any]]:
    """Return a response for each prompt; see `engine_half.build_methods`."""
    lora = {"lora_request": _adapters[adapter]} if adapter else {}
    return vllm_generate.respond(_llm(), prompts, sampling, scores_prompts, **lora)


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

    def update() -> dict[str, Any]:
        return vllm_update.TRANSPORTS[transport](_llm(), call_ranks, buckets, version)

    return vllm_generate.update_inflight(_llm(), prompts, samplings, pause, clear_cache, after, update, version)


def load_adapter(name: str, path: str, update: str) -> None:
    """Load an adapter, or another one under the same name and number.

    update: reload removes the one before and adds the new one; inplace has vLLM replace it; same only names the new path in
    later requests.
    """
    from vllm.lora.request import LoRARequest

    number = _adapters[name].lora_int_id if name in _adapters else len(_adapters) + 1
    request, engine = LoRARequest(name, number, path), _llm().llm_engine
    if update == "reload":
        if name in _adapters:
            engine.remove_lora(number)
        engine.add_lora(request)
    elif update == "inplace":
        engine.add_lora(LoRARequest(name, number, path, load_inplace=True))
    _adapters[name] = request


def digest_adapter(name: str) -> list[dict[str, Any]]:
    """Digest the tensors of an adapter on every rank."""
    return call_ranks("digest_adapter", [_adapters[name].lora_int_id])


def reset_prefix_cache() -> bool:
    """Drop all cached keys and values; return whether vLLM could."""
    return bool(_llm().reset_prefix_cache())


def weight_version(value: str | None = None) -> str:
    """Return the weight version; set it first if a value is given."""
    if value is not None:
        _llm().update_weight_version(value)
    return str(_llm().get_weight_version())


def sleep(level: int) -> None:
    """Make the engine release its device memory; 1 keeps the weights on the host, 2 drops them."""
    _llm().sleep(level=level)


def wake(tags: list[str] | None) -> None:
    """Make the engine take its memory back. tags: only the parts weights or kv_cache."""
    _llm().wake_up(tags)


def _llm() -> Any:
    if "llm" not in _running:
        raise LookupError("no engine is running")
    return _running["llm"]


OF_THE_ENGINE = (
    vllm_generate.generate,
    vllm_generate.score_full_vocab,
    vllm_generate.acceptance_length,
    vllm_generate.force_decode,
    vllm_generate.score_by_decode,
    vllm_generate.tokenize,
    vllm_images.score_image,
    vllm_images.reset_encoder_cache,
)
RPC_METHODS = build_methods(_llm, OF_THE_ENGINE, [
    prepare,
    start,
    stop,
    call_ranks,
    update_weights,
    update_draft,
    end_update,
    update_inflight,
    respond,
    reset_prefix_cache,
    load_adapter,
    digest_adapter,
    weight_version,
    sleep,
    wake,
])  # fmt: skip
