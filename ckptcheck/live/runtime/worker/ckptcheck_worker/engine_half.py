"""The common functions of the workers of vLLM and SGLang, built on each engine's own functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from . import inventory, lora_files

Method = Callable[..., Any]
ONE_TOKEN = {"temperature": 0.0, "max_tokens": 1, "ignore_eos": True}
"""The sampling of a request that only prefills: `Sampling` in ckptcheck/live/runtime/engines/sampling.py."""


def build_methods(
    find_engine: Callable[[], Any], of_engine: Iterable[Method], own: Iterable[Method]
) -> dict[str, Method]:
    """Return the functions of an engine's worker by name.

    find_engine: returns the running engine, the first argument of the functions in `of_engine`. own: further functions. Among
    both are `call_ranks`, `generate` and `reset_prefix_cache`, and `respond`, which takes prompts, one sampling for all, the
    adapter of the requests ("" for none) and whether to return prompt_logprobs, and returns the fields of `Generation`.
    """
    methods = {function.__name__: function for function in own}

    def bind(function: Method) -> Method:
        return lambda *arguments, **named: function(find_engine(), *arguments, **named)

    methods |= {function.__name__: bind(function) for function in of_engine}
    call_ranks = methods["call_ranks"]

    def fetch_tensors(names_by_rank: list[list[str]], path: str) -> None:
        """Write tensors of all ranks to one file."""
        inventory.fetch_from_ranks(call_ranks, names_by_rank, path)

    def score(sequences: list[list[int]], decode: int, adapter: str = "") -> list[dict[str, Any]]:
        """Return the logprobs of prompts by prefill, and the tokens that greedy decoding adds. adapter: of the requests, or "".

        Decoding runs first: it reads the prefix cache as it is, while prompt logprobs bypass the cache and fill it.
        """
        scores: list[dict[str, Any]] = [{} for _ in sequences]
        greedy = {"temperature": 0.0, "max_tokens": decode, "ignore_eos": True}
        for entry, made in zip(scores, methods["respond"](sequences, greedy, adapter, False) if decode else ()):
            entry["decoded_tokens"], entry["decode_logprobs"] = made["tokens"], made["logprobs"]
            entry["cached_tokens"] = made["cached_tokens"]
        for entry, made in zip(scores, methods["respond"](sequences, ONE_TOKEN, adapter, True)):
            entry["prompt_logprobs"] = made["prompt_logprobs"]
        return scores

    def expert_routing(tokens: list[int]) -> list[list[list[int]]]:
        """Return the experts of every token as [layer][token][choice]; [] if they are not recorded."""
        call_ranks("record_experts", [True])
        try:
            score([tokens], 0)
        finally:
            recorded = call_ranks("record_experts", [False])[0]
        return [[row for forward in layer for row in forward][: len(tokens)] for layer in recorded]

    def capture_activations(tokens: list[int], path: str) -> list[dict[str, Any]]:
        """Write the activations of every module while a prompt is prefilled, to one file a rank."""
        methods["reset_prefix_cache"]()
        call_ranks("start_capture", [len(tokens)])
        try:
            methods["generate"]([tokens], [ONE_TOKEN], "")
        finally:
            captures: list[dict[str, Any]] = call_ranks("finish_capture", [path])
        return captures

    shared = (
        fetch_tensors,
        score,
        expert_routing,
        capture_activations,
        lora_files.write_merged,
        lora_files.write_variant,
    )
    return {**methods, **{function.__name__: function for function in shared}}
