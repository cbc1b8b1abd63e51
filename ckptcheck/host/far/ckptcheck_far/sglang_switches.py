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
    if "speculative" in switches:
        chain = dict.fromkeys(("speculative_ngram_min_bfs_breadth", "speculative_ngram_max_bfs_breadth"), 1)
        found |= {
            "speculative_algorithm": "NGRAM",
            "speculative_num_draft_tokens": switches["speculative"] + 1,  # SGLang counts the token they come after
            **chain,  # no tree of proposals: what GPUs of every kind can verify
        }
    return found


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
        "speculative": value("speculative_num_draft_tokens") - 1 if value("speculative_algorithm") == "NGRAM" else 0,
    }
    if chunk and chunk > 0:
        found["chunk"] = chunk
    return found
