"""The vLLM worker without vLLM, with one more transport, written as docs/adding-a-transport.md says."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ckptcheck_worker import vllm_engine, vllm_generate, vllm_update


def take_by_toy(llm: Any, call_ranks: Any, buckets: list[dict[str, Any]], version: str) -> dict[str, Any]:
    """Report the names of all buckets whose file is there."""
    present = [bucket for bucket in buckets if os.path.exists(bucket["address"]["path"])]
    names = [name for bucket in present for name in bucket["names"]]
    error = "" if present == buckets else "FileNotFoundError: a bucket"
    return {"ok": not error, "message": error, "seconds": 0.0, "loaded_names": names, "weight_version": version}


def update_inflight(
    llm: Any,
    prompts: list[list[int]],
    samplings: list[dict[str, Any]],
    pause: str,
    clear_cache: bool,
    after: int,
    update: Callable[[], dict[str, Any]],
    version: str,
) -> dict[str, Any]:
    """Update the weights; no request runs."""
    return {"update": update(), "generations": []}


def start(**_: Any) -> dict[str, Any]:
    vllm_engine._running.update(llm="toy", updates=0)
    facts = {"device": "cpu", "weight_transfer": "None"}
    return {
        "version": "0",
        "dtype": "float32",
        "ranks": 1,
        "architecture": "LlamaForCausalLM",
        "facts": facts,
        "switches": {},
    }


vllm_update.TRANSPORTS["toy"] = take_by_toy
vllm_generate.update_inflight = update_inflight
RPC_METHODS = {**vllm_engine.RPC_METHODS, "start": start}
