"""Translates switches (runtime/engines/engine_options.py) to arguments of SGLang 0.5.23, and reads back what SGLang applied."""

from __future__ import annotations

from typing import Any


def engine_arguments(switches: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of sglang.Engine for the switches that are set."""
    arguments: dict[str, Any] = {}
    for name, word in (("prefix_cache", "disable_radix_cache"), ("async_scheduling", "disable_overlap_schedule")):
        if name in switches:
            arguments[word] = not switches[name]
    for name, word in (("head_fp32", "enable_fp32_lm_head"), ("sequences", "max_running_requests")):
        if name in switches:
            arguments[word] = switches[name]
    if switches.get("chunked_prefill") is False:
        arguments["chunked_prefill_size"] = -1
    elif "chunk" in switches:
        arguments["chunked_prefill_size"] = switches["chunk"]
    if "redundant_experts" in switches:
        # tokens take turns among the copies, so that every copy computes
        copies = {"ep_num_redundant_experts": switches["redundant_experts"], "ep_dispatch_algorithm": "dynamic"}
        arguments |= copies
    if "compilation" in switches:
        arguments["disable_cuda_graph"] = switches["compilation"] != "graphs"
        arguments["enable_torch_compile"] = switches["compilation"] == "inductor"
    if "draft" in switches and _has_gpu():
        arguments |= _draft_arguments(switches["draft"], switches.get("speculative", 1))
    elif "speculative" in switches and _has_gpu():
        arguments |= _ngram_arguments(switches["speculative"])
    return arguments


def _ngram_arguments(tokens: int) -> dict[str, Any]:
    """Return the arguments for n-gram speculation of so many tokens in one chain: not every GPU supports a tree of proposals.

    SGLang also counts the token before the proposals. On a CPU it accepts NGRAM too, but only its own CPU build has the kernels.
    """
    breadth = dict.fromkeys(("speculative_ngram_min_bfs_breadth", "speculative_ngram_max_bfs_breadth"), 1)
    return {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": tokens + 1, **breadth}


def _draft_arguments(draft: str, tokens: int) -> dict[str, Any]:
    """Return the arguments for a draft model, or the model's own layers (mtp), that proposes so many tokens in one chain."""
    chain = {"speculative_num_steps": tokens, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": tokens + 1}
    if draft == "mtp":
        return {"speculative_algorithm": "NEXTN", **chain}
    return {"speculative_algorithm": "STANDALONE", "speculative_draft_model_path": draft, **chain}


def draft_kind(value: Any) -> str:
    """Return the proposer of tokens: mtp, model (of another checkpoint) or ngram; "" for none.

    value: returns an argument of SGLang by name.
    """
    algorithm = value("speculative_algorithm")
    if not algorithm:
        return ""
    if algorithm == "NGRAM":
        return "ngram"
    # if the model's own layers draft, SGLang names the model itself
    return "mtp" if value("speculative_draft_model_path") in (None, value("model_path")) else "model"


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def applied_switches(value: Any, logprobs: str) -> dict[str, Any]:
    """Return the switches that SGLang applied. value: returns one of its arguments by name; logprobs: set after its start."""
    chunk = value("chunked_prefill_size")
    # on a CPU SGLang captures only compiled graphs
    graphs = not value("disable_cuda_graph") and value("device") != "cpu"
    arguments = {
        "prefix_cache": not value("disable_radix_cache"),
        "logprobs": logprobs,
        "chunked_prefill": bool(chunk and chunk > 0),
        "async_scheduling": not value("disable_overlap_schedule"),
        "compilation": "inductor" if value("enable_torch_compile") else "graphs" if graphs else "eager",
        "head_fp32": bool(value("enable_fp32_lm_head")),
        "sequences": value("max_running_requests"),
        "text": not value("skip_tokenizer_init"),
        "redundant_experts": int(value("ep_num_redundant_experts") or 0),
    }
    if chunk and chunk > 0:
        arguments["chunk"] = chunk
    if value("device") != "cpu":
        kind = draft_kind(value)
        arguments["speculative"] = value("speculative_num_draft_tokens") - 1 if kind else 0
        if kind in ("mtp", "model"):
            arguments["draft"] = "mtp" if kind == "mtp" else value("speculative_draft_model_path")
    return arguments
