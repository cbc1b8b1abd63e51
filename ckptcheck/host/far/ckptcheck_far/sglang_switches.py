"""The set-up of an engine (ckptcheck/engines/switches.py) in the words of SGLang 0.5.23, and what SGLang made of it."""

from __future__ import annotations

from typing import Any


def options(switches: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of sglang.Engine for the switches that are given."""
    found: dict[str, Any] = {}
    for name, word in (("prefix_cache", "disable_radix_cache"), ("async_scheduling", "disable_overlap_schedule")):
        if name in switches:
            found[word] = not switches[name]
    for name, word in (("head_fp32", "enable_fp32_lm_head"), ("sequences", "max_running_requests")):
        if name in switches:
            found[word] = switches[name]
    if switches.get("chunked_prefill") is False:
        found["chunked_prefill_size"] = -1
    elif "chunk" in switches:
        found["chunked_prefill_size"] = switches["chunk"]
    if "compilation" in switches:
        found["disable_cuda_graph"] = switches["compilation"] != "graphs"
        found["enable_torch_compile"] = switches["compilation"] == "inductor"
    if "speculative" in switches and _on_gpu():
        found |= _speculative(switches["speculative"])
    return found


def _speculative(tokens: int) -> dict[str, Any]:
    """Return the arguments that have n-grams propose so many tokens, one after the other: a tree of them is not for every GPU.

    SGLang counts the token after which they come. It takes NGRAM on a CPU too, for the kernels of its own build for CPUs.
    """
    breadth = dict.fromkeys(("speculative_ngram_min_bfs_breadth", "speculative_ngram_max_bfs_breadth"), 1)
    return {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": tokens + 1, **breadth}


def _on_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def resolved(value: Any, logprobs: str) -> dict[str, Any]:
    """Return what SGLang made of its arguments. value: asks it for one by name; logprobs: what was settled after its start."""
    chunk = value("chunked_prefill_size")
    graphs = not value("disable_cuda_graph") and value("device") != "cpu"  # where only what is compiled is captured
    found = {
        "prefix_cache": not value("disable_radix_cache"),
        "logprobs": logprobs,
        "chunked_prefill": bool(chunk and chunk > 0),
        "async_scheduling": not value("disable_overlap_schedule"),
        "compilation": "inductor" if value("enable_torch_compile") else "graphs" if graphs else "eager",
        "head_fp32": bool(value("enable_fp32_lm_head")),
        "sequences": value("max_running_requests"),
        "text": not value("skip_tokenizer_init"),
    }
    if chunk and chunk > 0:
        found["chunk"] = chunk
    if value("device") != "cpu":
        proposes = value("speculative_algorithm") == "NGRAM"
        found["speculative"] = value("speculative_num_draft_tokens") - 1 if proposes else 0
    return found
