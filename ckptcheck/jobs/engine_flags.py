"""Reads the arguments of vLLM and SGLang, which every framework passes on, and knows the defaults of their versions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from ckptcheck.jobs.document import Document
from ckptcheck.jobs.framework import (
    FieldSource,
    find_closest_name,
    is_positive,
    make_setting,
    negate,
    normalize_dtype,
    split_names,
)
from ckptcheck.jobs.interpolation import ResolvedValue, resolve
from ckptcheck.jobs.job import Job, Setting, UnknownKey

NEWEST = {"vllm": "0.32.0", "sglang": "0.5.23"}
"""Engine → the version whose defaults apply where the job names none. Tests compare it with the installed engines."""
TITLES = {"vllm": "vLLM", "sglang": "SGLang"}
"""Engine → its name in reports."""
SHORT = {
    "-tp": "tensor_parallel_size", "-pp": "pipeline_parallel_size", "-dp": "data_parallel_size", "-q": "quantization",
    "-ep": "enable_expert_parallel", "-n": "nnodes", "-sc": "speculative_config",
    "-cc": "compilation_config", "-ac": "attention_config",
}  # fmt: skip
"""Short option of vLLM → the argument."""


def _is_asked_for(value: object) -> object:
    """Return whether a value, a switch or a name, asks for something."""
    return value not in (None, False, "", "none")


def _scales_of_first_request(value: object) -> object:
    """Return where vLLM's calculate_kv_scales takes scales from, or "none"."""
    return "the first request (calculate_kv_scales)" if value is True else "none"


def _raw_or_processed(value: object) -> object:
    """Map vLLM's logprobs_mode to raw or processed."""
    return {
        "raw_logprobs": "raw",
        "raw_logits": "raw",
        "processed_logprobs": "processed",
        "processed_logits": "processed",
    }.get(str(value))


def _is_float32(value: object) -> object:
    return normalize_dtype(value) == "float32"


VLLM: Mapping[str, FieldSource] = {
    "engine.tp": FieldSource(("tensor_parallel_size",)),
    "engine.dtype": FieldSource(("dtype",), read=normalize_dtype),
    "engine.quantization": FieldSource(("quantization",)),
    "engine.kv_cache_dtype": FieldSource(("kv_cache_dtype",)),
    "engine.max_model_len": FieldSource(("max_model_len",)),
    "engine.memory": FieldSource(("gpu_memory_utilization",)),
    "engine.logprobs": FieldSource(("logprobs_mode",), read=_raw_or_processed),
    "engine.prefix_caching": FieldSource(("enable_prefix_caching",)),
    "engine.async_scheduling": FieldSource(("async_scheduling",)),
    "engine.cascade_attention": FieldSource(("disable_cascade_attn",), read=negate),
    "engine.chunked_prefill": FieldSource(("enable_chunked_prefill",)),
    "engine.fp32_head": FieldSource(("hf_overrides.head_dtype",), read=_is_float32),
    "engine.graphs": FieldSource(("enforce_eager",), read=negate),
    "engine.all_to_all": FieldSource(("all2all_backend",)),
    "engine.draft": FieldSource(
        ("speculative_config", "speculative_config.method", "speculative_config.model"), read=bool
    ),
    "engine.draft_method": FieldSource(("speculative_config.method",)),
    "engine.draft_model": FieldSource(("speculative_config.model",)),
    "engine.load_format": FieldSource(("load_format",)),
    "engine.routed_experts": FieldSource(("enable_return_routed_experts",)),
    "engine.balances_experts": FieldSource(("enable_eplb",)),
    "engine.redundant_experts": FieldSource(("num_redundant_experts", "eplb_config.num_redundant_experts")),
    "engine.cache_scales": FieldSource(("calculate_kv_scales",), read=_scales_of_first_request),
    "engine.lora": FieldSource(("enable_lora",)),
    "engine.tokenizer": FieldSource(("tokenizer",)),
    "engine.chat_template": FieldSource(("chat_template",)),
    "engine.generation_config": FieldSource(("generation_config",)),
}
SGLANG: Mapping[str, FieldSource] = {
    "engine.tp": FieldSource(("tp_size", "tensor_parallel_size", "tp")),
    "engine.dtype": FieldSource(("dtype",), read=normalize_dtype),
    "engine.quantization": FieldSource(("quantization",)),
    "engine.kv_cache_dtype": FieldSource(("kv_cache_dtype",)),
    "engine.max_model_len": FieldSource(("context_length",)),
    "engine.memory": FieldSource(("mem_fraction_static",)),
    "engine.prefix_caching": FieldSource(("disable_radix_cache",), read=negate),
    "engine.async_scheduling": FieldSource(("disable_overlap_schedule",), read=negate),
    "engine.chunked_prefill": FieldSource(("chunked_prefill_size",), read=is_positive),
    "engine.fp32_head": FieldSource(("enable_fp32_lm_head",)),
    "engine.graphs": FieldSource(("disable_cuda_graph",), read=negate),
    "engine.all_to_all": FieldSource(("moe_a2a_backend",)),
    "engine.draft": FieldSource(("speculative_algorithm",), read=bool),
    "engine.draft_method": FieldSource(("speculative_algorithm",)),
    "engine.draft_model": FieldSource(("speculative_draft_model_path",)),
    "engine.load_format": FieldSource(("load_format",)),
    "engine.routed_experts": FieldSource(("enable_return_routed_experts",)),
    "engine.balances_experts": FieldSource(("enable_eplb",)),
    "engine.redundant_experts": FieldSource(("ep_num_redundant_experts",)),
    "engine.cache_scales": FieldSource(("quantization_param_path",)),
    # SGLang turns deterministic inference on where a target of on-policy training is named.
    "engine.deterministic": FieldSource(("rl_on_policy_target", "enable_deterministic_inference"), read=_is_asked_for),
    "engine.lora": FieldSource(("enable_lora",)),
    "engine.tokenizer": FieldSource(("tokenizer_path",)),
    "engine.chat_template": FieldSource(("chat_template",)),
}
ARGUMENTS = {"vllm": VLLM, "sglang": SGLANG}
DEPRECATED_ARGUMENTS = {
    "vllm": split_names("""
    num_scheduler_steps disable_log_requests use_v2_block_manager cuda_graph_sizes disable_frontend_multiprocessing task
    max_seq_len_to_capture swap_space num_redundant_experts calculate_kv_scales rope_scaling rope_theta
    guided_decoding_backend disable_async_output_proc disable_mm_preprocessor_cache
    """),
    "sglang": split_names("""
    cuda_graph_bs cuda_graph_max_bs enable_ep_moe enable_deepep_moe tp dp nsa_decode_backend nsa_prefill_backend
    mamba_scheduler_strategy
    """),
}
"""Engine → arguments of earlier versions, which launch scripts still contain."""


@cache
def known_arguments(engine: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the arguments of an engine's newest version: (arguments without a value, arguments that take a value)."""
    table = json.loads((Path(__file__).parent / "engine_arguments.json").read_text(encoding="utf-8"))[engine]
    return frozenset(table["switches"].split()), frozenset(table["valued"].split())


def apply_engine_arguments(
    job: Job, engine: str, arguments: Mapping[str, ResolvedValue], *, beside: frozenset[str] = frozenset()
) -> None:
    """Set the job's fields from an engine's arguments, which replace values that the job already has.

    Args:
        job: The job to change; an argument that the engine does not have is added to its unknown keys.
        engine: vllm or sglang; the function does nothing for any other engine.
        arguments: Name as written, without leading dashes → value.
        beside: Arguments that the framework itself handles and does not pass to the engine.
    """
    if engine not in ARGUMENTS:
        return
    normalized: dict[str, ResolvedValue] = {}
    switches, valued = known_arguments(engine)
    for written, resolved in arguments.items():
        argument, dot, rest = written.replace("-", "_").partition(".")
        if argument.startswith("no_") and argument[3:] in switches:
            argument, resolved = argument[3:], ResolvedValue(False, resolved.leaf, resolved.reason)
        if argument in beside:
            continue
        known = switches | valued | DEPRECATED_ARGUMENTS[engine]
        if argument not in known and (resolved.leaf.key.startswith("--") or "-" in written):
            begun = [name for name in known if name.startswith(argument)]
            argument = begun[0] if len(begun) == 1 else argument  # argparse takes the beginning of one flag for it
        if argument not in known:
            near, key = find_closest_name(argument, switches | valued), resolved.leaf.key
            if near and key.startswith("--"):
                # The flag as the job would write it: with what its framework puts before it, and with its dashes.
                near = key.replace(argument, near).replace(argument.replace("_", "-"), near.replace("_", "-"))
            stops = TITLES[engine] if resolved.leaf.key.startswith("--") and not job.updates_weights else ""
            job.unknown_keys.append(UnknownKey(resolved.leaf, near=near, refused_by=stops))
            continue
        # YAML writes an option without a value as an empty text.
        if argument in switches and resolved.value == "":
            resolved = ResolvedValue(True, resolved.leaf, resolved.reason)
        normalized[argument + dot + rest] = resolved
        normalized |= _expand_json_value(argument, resolved) if not dot else {}
    job.engine_arguments = normalized
    for name, source in ARGUMENTS[engine].items():
        for path in source.paths:
            value = normalized.get(path)
            if value is None or (value.value is None and not value.reason) or value.value == {}:
                continue
            setting = make_setting(job, value, name, source.read)
            if setting is not None:
                job.settings[name] = setting


def _expand_json_value(name: str, resolved: ResolvedValue) -> dict[str, ResolvedValue]:
    """Return the keys of a JSON argument as dotted arguments: ``--hf-overrides '{"head_dtype": "float32"}'``.

    name: the argument's. Returns {} for a value that is not a JSON object.
    """
    value = resolved.value
    if isinstance(value, str) and value.startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    if not isinstance(value, dict):
        return {}
    return {f"{name}.{key}": ResolvedValue(part, resolved.leaf) for key, part in value.items()}


def _release(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version: 0.18.1 → (0, 18, 1)."""
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
        "engine.generation_config": lambda version: "auto" if version >= (0, 8) else "vllm",
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
"""Engine → field → function from a release to the default there, None where it is not known.

vLLM: from the sources of 0.17.0, 0.17.1, 0.18.0, 0.18.1 and 0.32.0. Asynchronous scheduling became the default in 0.14.0;
cascade attention is off since 0.18.0 (vllm-project/vllm#36318) and no longer exists in 0.32. SGLang: from 0.5.23.
"""


def apply_engine_defaults(job: Job) -> None:
    """Set the fields that neither the job nor its framework sets to the defaults of the engine's version."""
    version = job.engine_version or NEWEST.get(job.engine, "")
    for name, default in DEFAULTS.get(job.engine, {}).items():
        if job[name].status == "unknown" and (value := default(_release(version))) is not None:
            if job.is_incomplete:
                reason = f"a file that ckptcheck could not read may set it: {job.notes[0]}"
                job.settings[name] = Setting(None, "unresolved", reason)
                continue
            job.settings[name] = Setting(value, "default", f"default of {TITLES[job.engine]} {version}")


BESIDE = split_names("model_tag model_name api_key config vllm_model_impl log_level")
"""Options that are none of the engine's; the last two are those of ``trl vllm-serve``."""


def finish_engine_job(job: Job, document: Document, engine: str) -> None:
    """Set the engine's name and its arguments. engine: vllm or sglang."""
    job.settings["engine.name"] = Setting(engine, "default", "the launch line")
    arguments = {name: resolved for name in document.leaves if (resolved := resolve(document, name)) is not None}
    apply_engine_arguments(job, engine, arguments, beside=BESIDE)
