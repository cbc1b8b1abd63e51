"""The arguments of vLLM and SGLang, whoever passes them on, and the defaults of their versions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from ckptcheck.preflight.document import Leaf
from ckptcheck.preflight.framework import Source, dtype, names, nearest, setting_from
from ckptcheck.preflight.interpolation import Found
from ckptcheck.preflight.job import Job, Setting, Unread

NEWEST = {"vllm": "0.32.0", "sglang": "0.5.23"}
"""The versions whose defaults are taken where none is told; tests hold them to the installed engines."""
TITLES = {"vllm": "vLLM", "sglang": "SGLang"}
SHORT = {
    "-tp": "tensor_parallel_size", "-pp": "pipeline_parallel_size", "-dp": "data_parallel_size", "-q": "quantization",
    "-ep": "enable_expert_parallel", "-n": "nnodes", "-sc": "speculative_config",
    "-cc": "compilation_config", "-ac": "attention_config",
}  # fmt: skip
"""vLLM's short options."""


def _opposite(value: object) -> object:
    return None if not isinstance(value, bool) else not value


def _raw_or_processed(value: object) -> object:
    return {
        "raw_logprobs": "raw",
        "raw_logits": "raw",
        "processed_logprobs": "processed",
        "processed_logits": "processed",
    }.get(str(value))


def _chunked(value: object) -> object:
    return value > 0 if isinstance(value, (int, float)) else None


def _fp32(value: object) -> object:
    return dtype(value) == "float32"


VLLM: Mapping[str, Source] = {
    "engine.tp": Source(("tensor_parallel_size",)),
    "engine.dtype": Source(("dtype",), read=dtype),
    "engine.quantization": Source(("quantization",)),
    "engine.kv_cache_dtype": Source(("kv_cache_dtype",)),
    "engine.max_model_len": Source(("max_model_len",)),
    "engine.logprobs": Source(("logprobs_mode",), read=_raw_or_processed),
    "engine.prefix_caching": Source(("enable_prefix_caching",)),
    "engine.async_scheduling": Source(("async_scheduling",)),
    "engine.cascade_attention": Source(("disable_cascade_attn",), read=_opposite),
    "engine.chunked_prefill": Source(("enable_chunked_prefill",)),
    "engine.fp32_head": Source(("hf_overrides.head_dtype",), read=_fp32),
    "engine.draft": Source(("speculative_config", "speculative_config.method", "speculative_config.model"), read=bool),
}
SGLANG: Mapping[str, Source] = {
    "engine.tp": Source(("tp_size", "tensor_parallel_size", "tp")),
    "engine.dtype": Source(("dtype",), read=dtype),
    "engine.quantization": Source(("quantization",)),
    "engine.kv_cache_dtype": Source(("kv_cache_dtype",)),
    "engine.max_model_len": Source(("context_length",)),
    "engine.prefix_caching": Source(("disable_radix_cache",), read=_opposite),
    "engine.async_scheduling": Source(("disable_overlap_schedule",), read=_opposite),
    "engine.chunked_prefill": Source(("chunked_prefill_size",), read=_chunked),
    "engine.fp32_head": Source(("enable_fp32_lm_head",)),
    "engine.draft": Source(("speculative_algorithm",), read=bool),
}
ARGUMENTS = {"vllm": VLLM, "sglang": SGLANG}
OLDER = {
    "vllm": names("""
    num_scheduler_steps disable_log_requests use_v2_block_manager cuda_graph_sizes disable_frontend_multiprocessing task
    max_seq_len_to_capture swap_space rope_scaling rope_theta guided_decoding_backend disable_async_output_proc
    """),
    "sglang": names("cuda_graph_bs cuda_graph_max_bs enable_ep_moe enable_deepep_moe tp dp"),
}
"""Arguments of earlier versions that launch scripts still have."""


@cache
def known_arguments(engine: str) -> tuple[frozenset[str], frozenset[str]]:
    """The arguments of an engine's newest version: (those that are switches, those that take a value)."""
    table = json.loads((Path(__file__).parent / "engine_arguments.json").read_text(encoding="utf-8"))[engine]
    return frozenset(table["switches"].split()), frozenset(table["valued"].split())


def take(job: Job, engine: str, arguments: Mapping[str, Found], *, beside: frozenset[str] = frozenset()) -> None:
    """Put an engine's arguments into the job, over what it has. arguments: as written, without leading dashes.

    beside: names that the framework itself takes out before the engine sees them.
    """
    if engine not in ARGUMENTS:
        return
    plain: dict[str, Found] = {}
    switches, valued = known_arguments(engine)
    for written, found in arguments.items():
        first, dot, rest = written.replace("-", "_").partition(".")
        if first.startswith("no_") and first[3:] in switches:
            first, found = first[3:], Found(False, found.leaf, found.reason)
        if first in beside:
            continue
        if first not in switches | valued | OLDER[engine]:
            job.not_understood.append(Unread(found.leaf, near=nearest(first, switches | valued)))
            continue
        if first in switches and found.value == "":  # as YAML writes a bare option
            found = Found(True, found.leaf, found.reason)
        plain[first + dot + rest] = found
        plain |= _inside(first, found) if not dot else {}
    for name, source in ARGUMENTS[engine].items():
        for path in source.paths:
            got = plain.get(path)
            if got is None or (got.value is None and not got.reason) or got.value == {}:
                continue
            made = setting_from(job, got, name, source.read)
            if made is not None:
                job.settings[name] = made


def _inside(name: str, found: Found) -> dict[str, Found]:
    """What a JSON value holds: ``--hf-overrides '{"head_dtype": "float32"}'``."""
    value = found.value
    if isinstance(value, str) and value.startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    if not isinstance(value, dict):
        return {}
    return {f"{name}.{key}": Found(part, found.leaf) for key, part in value.items()}


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


Default = Callable[[tuple[int, ...]], object]
DEFAULTS: Mapping[str, Mapping[str, Default]] = {
    "vllm": {
        "engine.logprobs": lambda version: "raw",
        "engine.prefix_caching": lambda version: True if version >= (0, 9) else None,
        "engine.async_scheduling": lambda version: version >= (0, 14),
        "engine.cascade_attention": lambda version: (0, 9) <= version < (0, 18),
        "engine.chunked_prefill": lambda version: True if version >= (0, 9) else None,
        "engine.fp32_head": lambda version: False,
        "engine.dtype": lambda version: "auto",
        "engine.quantization": lambda version: "none",
        "engine.kv_cache_dtype": lambda version: "auto",
    },
    "sglang": {
        "engine.logprobs": lambda version: "processed",
        "engine.prefix_caching": lambda version: True,
        "engine.async_scheduling": lambda version: True,
        "engine.fp32_head": lambda version: False,
        "engine.dtype": lambda version: "auto",
        "engine.quantization": lambda version: "none",
        "engine.kv_cache_dtype": lambda version: "auto",
    },
}
"""Field → default by release. vLLM: read in 0.17.0, 0.17.1, 0.18.0, 0.18.1 and 0.32.0; asynchronous scheduling became the
default in 0.14.0, cascade attention (vllm-project/vllm#36318) was turned off in 0.18.0 and is gone in 0.32. SGLang: 0.5.23."""


def fill_defaults(job: Job) -> None:
    """Set what neither the job nor its framework says to the default of the engine's version."""
    version = job.engine_version or NEWEST.get(job.engine, "")
    for name, default in DEFAULTS.get(job.engine, {}).items():
        if job[name].status == "unknown" and (value := default(_release(version))) is not None:
            job.settings[name] = Setting(value, "default", f"default of {TITLES[job.engine]} {version}")


def arguments_below(found: Mapping[str, Leaf], look: Callable[[str], Found | None], section: str) -> dict[str, Found]:
    """The arguments in a section of a document: name → what it comes to."""
    result = {}
    for path in found:
        if path.startswith(f"{section}.") and (got := look(path)) is not None:
            result[path[len(section) + 1 :]] = got
    return result
