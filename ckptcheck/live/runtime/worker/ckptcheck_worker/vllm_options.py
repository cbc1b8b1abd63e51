"""Translates switches (runtime/engines/engine_options.py) to arguments of vLLM 0.32, and reads back what vLLM applied."""

from __future__ import annotations

import os
from typing import Any

DYNAMO_VARIABLE = "TORCHDYNAMO_DISABLE"


def engine_arguments(switches: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of LLM() for the switches that are set, and configure torch's compiler, which has no argument."""
    words = {
        "prefix_cache": "enable_prefix_caching",
        "chunked_prefill": "enable_chunked_prefill",
        "chunk": "max_num_batched_tokens",
        "async_scheduling": "async_scheduling",
        "sequences": "max_num_seqs",
    }
    arguments = {word: switches[name] for name, word in words.items() if name in switches}
    if "logprobs" in switches:
        arguments["logprobs_mode"] = f"{switches['logprobs']}_logprobs"
    if "head_fp32" in switches:
        arguments["hf_overrides"] = {"head_dtype": "float32" if switches["head_fp32"] else "model"}
    if "text" in switches:
        arguments |= {
            "skip_tokenizer_init": not switches["text"],
            "generation_config": "auto" if switches["text"] else "vllm",
        }
    if "draft" in switches:
        own = {"method": "mtp"} if switches["draft"] == "mtp" else {"model": switches["draft"]}
        arguments["speculative_config"] = {"num_speculative_tokens": switches.get("speculative", 1), **own}
    elif "speculative" in switches:
        proposed = {"num_speculative_tokens": switches["speculative"], "prompt_lookup_min": 1, "prompt_lookup_max": 3}
        arguments["speculative_config"] = {"method": "ngram", **proposed}
    if "redundant_experts" in switches and not _is_on_cpu():
        # the trial asks for each move and waits for it
        balancing = {"num_redundant_experts": switches["redundant_experts"], "use_async": False}
        arguments |= {"enable_eplb": True, "enable_expert_parallel": True, "eplb_config": balancing}
    if "compilation" in switches:
        arguments["enforce_eager"] = switches["compilation"] == "eager"
        if switches["compilation"] == "graphs":
            arguments["compilation_config"] = {"backend": "eager"}
    _set_compiler(switches)
    return arguments


def _set_compiler(switches: dict[str, Any]) -> None:
    import torch._dynamo.config as dynamo

    compiled = switches.get("compilation", "eager") != "eager"
    dynamo.disable = not compiled
    if compiled:
        os.environ.pop(DYNAMO_VARIABLE, None)
        import torch._inductor.config as inductor

        inductor.emulate_precision_casts = bool(switches.get("precision_casts"))
    else:
        os.environ[DYNAMO_VARIABLE] = "1"


def _is_on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def redundant_experts(config: Any) -> int:
    """Return how many copies of experts vLLM holds beside the experts: 0 on a CPU. config: VllmConfig."""
    parallel = config.parallel_config
    return int(parallel.eplb_config.num_redundant_experts) if getattr(parallel, "enable_eplb", False) else 0


def applied_switches(config: Any) -> dict[str, Any]:
    """Return the switches that vLLM applied. config: VllmConfig."""
    from vllm.config import CompilationMode

    model, scheduler, compilation = config.model_config, config.scheduler_config, config.compilation_config
    if compilation.mode == CompilationMode.NONE:
        mode = "eager"
    elif compilation.backend == "inductor":
        mode = "inductor"
    else:
        graphs = str(getattr(compilation.cudagraph_mode, "name", compilation.cudagraph_mode))
        mode = "graphs" if graphs != "NONE" else "traced, and run as eager"
    return {
        "prefix_cache": bool(config.cache_config.enable_prefix_caching),
        "logprobs": str(model.logprobs_mode).removesuffix("_logprobs"),
        "chunked_prefill": bool(scheduler.enable_chunked_prefill),
        "chunk": int(scheduler.max_num_batched_tokens),
        "async_scheduling": bool(scheduler.async_scheduling),
        "compilation": mode,
        "precision_casts": mode == "inductor" and _emulates_precision_casts(),
        "head_fp32": str(model.head_dtype) == "torch.float32",
        "sequences": int(scheduler.max_num_seqs),
        "speculative": getattr(config.speculative_config, "num_speculative_tokens", 0),
        "draft": _draft(config),
        "redundant_experts": redundant_experts(config),
        "text": not model.skip_tokenizer_init and model.generation_config == "auto",
    }


def draft_kind(config: Any) -> str:
    """Return the proposer of tokens: mtp, model (of another checkpoint) or ngram; "" for none. config: VllmConfig."""
    speculative = config.speculative_config
    if speculative is None:
        return ""
    draft = getattr(speculative, "draft_model_config", None)
    if draft is None or "ngram" in str(speculative.method):
        return "ngram"
    is_own = draft.model == config.model_config.model and speculative.method != "draft_model"
    return "mtp" if is_own else "model"


def _draft(config: Any) -> str | None:
    """Return the value of the switch `draft`; None if no draft model proposes tokens."""
    kind = draft_kind(config)
    return (
        str(config.speculative_config.draft_model_config.model) if kind == "model" else "mtp" if kind == "mtp" else None
    )


def stock_logprobs() -> str:
    """Return the distribution of vLLM's logprobs by default: raw or processed."""
    from vllm.engine.arg_utils import EngineArgs

    return str(EngineArgs.logprobs_mode).removesuffix("_logprobs")


def _emulates_precision_casts() -> bool:
    import torch._inductor.config as inductor

    return bool(inductor.emulate_precision_casts)
