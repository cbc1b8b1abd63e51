"""Reads GRPO jobs of ms-swift: ``swift rlhf --rlhf_type grpo …``, ``megatron rlhf …``, YAML, `RLHFArguments(…)` in Python.

Facts, from modelscope/ms-swift (3602360a5, the releases named) and the package 4.6.0; without another file named, from
``swift/rlhf_trainers`` and ``swift/megatron``:

- Until 3.12 the default for rollouts was top-p 0.9 and top-k 50 (``GRPOArgumentsMixin``), since 4.0 it is neither. The
  trainer divides its logits by the temperature, and computes over the whole vocabulary.
- vLLM's logprobs are processed ones, colocated and in ``swift rollout``, since 3.11 (``_prepare_vllm_engine``). They
  enter the loss if ``rollout_importance_sampling_mode`` is set, which has no default.
- vLLM computes in the dtype in which the model is loaded, ``torch_dtype``. The trainer's autocast has that dtype too, but for
  float32: there it computes in float16 (``ModelArguments._init_mixed_precision``).
- All weights are sent before each generation, with adapters merged (or the adapter alone with ``vllm_enable_lora``), and then
  the prefix cache is cleared (``_reset_vllm_cache``).
- ``async_generate`` trains on rollouts of the weights before the last update.
- ``router_replay_mode`` R3 turns the experts' record on in vLLM and its replay in Megatron; R2 replays the trainer's own.

Keys and defaults of each release are in ``keys.json`` and ``megatron_keys.json``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ckptcheck.jobs.document import Document
from ckptcheck.jobs.engine_flags import apply_engine_arguments
from ckptcheck.jobs.framework import (
    FieldSource,
    Framework,
    coerce,
    derive_setting,
    expand_mapping,
    expand_negations,
    find_written,
    is_switched_on,
    name_loss_weight,
    normalize_dtype,
    read_section,
    read_setting,
    remove_settings,
    set_default,
    set_derived,
    set_weights,
    split_names,
)
from ckptcheck.jobs.interpolation import ResolvedValue
from ckptcheck.jobs.job import Job, Setting
from ckptcheck.jobs.key_table import KeyTable, load_key_table, set_from_table
from ckptcheck.jobs.python_source.script import PythonScript
from ckptcheck.jobs.transformers_flags import TRAINING_ARGUMENTS

SWIFT = "ms-swift"
SERVER = "server"
"""The section that holds the options of ``swift rollout``."""
GROUPS = ("train", "rollout")
"""Sections of a YAML file for Ray, whose keys are those of the rest (``swift/ray/megatron/driver_utils.py``)."""
OTHER_KEYS = split_names("""
    config gpus nnodes colocate_groups teacher train rollout sortish_sampler predict_with_generate generation_max_length
    generation_num_beams generation_config
""")
"""Keys of Ray's YAML, and those of transformers' `Seq2SeqTrainingArguments`."""
DATED = ("engine.logprobs", "update.clears_cache", "update.in_flight", "update.mode")
"""Fields that no key sets; ``defaults/ms-swift.toml`` has their values by version."""
ENGINE_OPTIONS = "vllm_engine_kwargs"


def _is_lora(value: object) -> object:
    return str(value) != "full"


PATHS: Mapping[str, FieldSource] = {
    "trainer.lora": FieldSource(("tuner_type", "train_type"), read=_is_lora),
    "rollout.temperature": FieldSource(("temperature",)),
    "rollout.top_p": FieldSource(("top_p",)),
    "rollout.top_k": FieldSource(("top_k",)),
    "rollout.min_p": FieldSource(("min_p",)),
    "rollout.repetition_penalty": FieldSource(("repetition_penalty",)),
    "rollout.response_length": FieldSource(("response_length", "max_new_tokens", "max_completion_length")),
    "rollout.n": FieldSource(("num_generations",)),
    "algorithm.loss_weight": FieldSource(("loss_type",), read=name_loss_weight),
    "checkpoint.model": FieldSource(("model",)),
}  # fmt: skip
MEGATRON: Mapping[str, FieldSource] = {
    "trainer.tp": FieldSource(("tensor_model_parallel_size",)),
    "trainer.pp": FieldSource(("pipeline_model_parallel_size",)),
    "trainer.vpp": FieldSource(("virtual_pipeline_model_parallel_size",)),
    "trainer.ep": FieldSource(("expert_model_parallel_size",)),
    "trainer.cp": FieldSource(("context_parallel_size",)),
    "trainer.attention_backend": FieldSource(("attention_backend",), read=lambda value: str(value).partition("_")[0]),
    "trainer.fp8": FieldSource(("fp8_format",), read=lambda value: value not in (None, "none", False)),
    "trainer.attention_dropout": FieldSource(("attention_dropout",)),
    "trainer.hidden_dropout": FieldSource(("hidden_dropout",)),
    "checkpoint.trainer": FieldSource(("mcore_model", "load")),
}  # fmt: skip
COLOCATED: Mapping[str, FieldSource] = {
    "engine.tp": FieldSource(("vllm_tensor_parallel_size",)),
    "engine.max_model_len": FieldSource(("vllm_max_model_len",)),
    "engine.memory": FieldSource(("vllm_gpu_memory_utilization",)),
    "engine.prefix_caching": FieldSource(("vllm_enable_prefix_caching",)),
    "engine.sleep_level": FieldSource(("sleep_level",)),
}  # fmt: skip


def _finish(job: Job, document: Document) -> None:
    """Read the job by its release, and set the fields that depend on several keys."""
    is_megatron = "megatron" in document.script.lower() or document.has("micro_batch_size")
    table = load_key_table(Path(__file__).with_name("megatron_keys.json" if is_megatron else "keys.json"))
    _normalize(document, table)
    number, _ = table.pick_release(job, document, TRAINING_ARGUMENTS)
    of = f"{SWIFT} {table.describe(number).removeprefix('v')}"
    # ms-swift refuses them, but for what Megatron itself takes until 3.12.
    others = TRAINING_ARGUMENTS | OTHER_KEYS | {SERVER}
    job.unknown_keys += table.list_unknown_flags(document, number, others, "" if is_megatron else SWIFT)
    for name, source in {**PATHS, **(MEGATRON if is_megatron else {})}.items():
        set_from_table(job, document, name, source, table, number, of)
    if document.has("moe_permute_fusion"):
        set_from_table(
            job, document, "trainer.moe_permute_fusion", FieldSource(("moe_permute_fusion",)), table, number, of
        )
    _set_backend_and_dtype(job, document, is_megatron, of)
    _set_gpus(job, document)
    kind = find_written(document, "rlhf_type")
    if kind is None or (not kind.reason and kind.value != "grpo"):
        remove_settings(job, "rollout.")
        return
    job.settings["trainer.filters"] = read_setting(job, document, "trainer.filters", FieldSource())
    set_derived(job, "trainer.temperature", job["rollout.temperature"].value, job["rollout.temperature"])
    _set_router_replay(job, document, is_megatron, of)
    use = find_written(document, "use_vllm")
    default = table.find("use_vllm", number)
    if not (is_switched_on(document, "use_vllm") if use else default is not None and default.default is True):
        job.settings["engine.name"] = Setting(
            "transformers", "default", f"default of {of}: generate() of the trained model"
        )
        return
    _read_engine(job, document, table, number, of)
    _set_correction(job, document, table, number, of)


def _normalize(document: Document, table: KeyTable) -> None:
    """Normalize arguments with several forms: ``--no_x``, ``ENV:``, the groups of Ray's YAML, JSON
    objects.
    """
    is_ray = document.has("rollout.gpus") or document.has("train.gpus")
    for path, leaf in list(document.leaves.items()):
        section, _, key = path.partition(".")
        if section == "ENV" and key:
            document.environment[key] = leaf
            document.remove(path)
        elif is_ray and section in GROUPS and key not in ("", "gpus"):
            document.remove(path)
            document.put(key, leaf)
    expand_negations(document, table.has)
    for path in (ENGINE_OPTIONS, f"{SERVER}.{ENGINE_OPTIONS}"):
        expand_mapping(document, path)


def _set_backend_and_dtype(job: Job, document: Document, is_megatron: bool, of: str) -> None:
    """Set the trainer's backend of distribution, and the dtype of its matrix products."""
    if is_megatron:
        set_default(job, "trainer.backend", "megatron", SWIFT)
    else:
        backends = [name for name in ("deepspeed", "fsdp") if find_written(document, name) is not None]
        set_default(job, "trainer.backend", backends[0] if backends else "transformers", of)
    weights = find_written(document, "torch_dtype")
    for key, dtype in (("fp16", "float16"), ("bf16", "bfloat16")):
        found = find_written(document, key)
        if found is not None and is_switched_on(document, key):
            job.settings["trainer.dtype"] = derive_setting(found, dtype)
            return
    if weights is not None:
        dtype = str(normalize_dtype(weights.value))
        job.settings["trainer.dtype"] = derive_setting(weights, "float16" if dtype == "float32" else dtype)


def _set_gpus(job: Job, document: Document) -> None:
    """Set the GPUs of trainer and engine: of Ray's groups, or of torchrun, which ms-swift starts by NPROC_PER_NODE and NNODES."""
    for side, group in (("trainer", "train"), ("engine", "rollout")):
        if (gpus := find_written(document, f"{group}.gpus")) is not None and isinstance(gpus.value, int):
            job.settings[f"{side}.world"] = derive_setting(gpus, gpus.value)
    sizes = [document.environment.get(name) for name in ("NPROC_PER_NODE", "NNODES")]
    numbers = [coerce(leaf.value, "number") if leaf and not leaf.reason else None for leaf in sizes]
    nodes = 1 if sizes[1] is None else numbers[1]
    if isinstance(numbers[0], int) and isinstance(nodes, int) and sizes[0] is not None:
        world = replace(sizes[0], value=numbers[0] * nodes)
        job.settings["trainer.world"] = Setting(world.value, "set", "", world)
        document.put("num_processes", world)


def _set_router_replay(job: Job, document: Document, is_megatron: bool, of: str) -> None:
    """Set router replay: one key turns it on in vLLM and in the trainer."""
    if not is_megatron:
        return
    mode = find_written(document, "router_replay_mode")
    if mode is None or mode.value == "disabled":
        set_default(job, "trainer.router_replay", "none", of)
        return
    job.settings["trainer.router_replay"] = derive_setting(mode, "rollout" if mode.value == "R3" else "recompute")
    job.settings["engine.routed_experts"] = derive_setting(mode, mode.value == "R3")


def _read_engine(job: Job, document: Document, table: KeyTable, number: int, of: str) -> None:
    """Set vLLM's fields: if it is colocated from the trainer's own keys, or else from the keys of ``swift rollout``."""
    mode = find_written(document, "vllm_mode")
    default_mode = table.find("vllm_mode", number)
    addresses = ("vllm_server_host", "vllm_server_base_url")
    is_server = mode.value == "server" if mode else any(document.has(key) for key in addresses)
    in_ray = not mode and not is_server and document.has("gpus")
    is_colocated = document.has("colocate_groups") if in_ray else not is_server
    job.settings["engine.name"] = Setting("vllm", "default", f"default of {of}")
    if mode is not None and mode.reason:
        job.settings["engine.logprobs"] = Setting(None, "unresolved", mode.reason, mode.leaf)
        return
    set_default(job, "engine.colocated", is_colocated, of if default_mode else SWIFT)
    set_default(job, "engine.quantization", "none", of)
    for name in DATED:
        job.settings[name] = read_setting(job, document, name, FieldSource())
    prefix = f"{SERVER}." if is_server else ""
    dtype = find_written(document, f"{prefix}torch_dtype")
    if dtype is not None:
        job.settings["engine.dtype"] = derive_setting(dtype, normalize_dtype(dtype.value))
    else:
        set_default(job, "engine.dtype", "auto", of)
    if not is_server:
        for name, source in COLOCATED.items():
            set_from_table(job, document, name, source, table, number, of)
    elif not document.engine_script:
        leaf = mode.leaf if mode else next(document.leaves[key] for key in addresses if key in document.leaves)
        for name in ("engine.prefix_caching", "engine.max_model_len", "engine.dtype"):
            job.settings[name] = Setting(None, "unresolved", "the command swift rollout sets it", leaf)
    _apply_vllm_options(job, document, prefix)
    lora = find_written(document, f"{prefix}vllm_enable_lora")
    if lora is not None and is_switched_on(document, f"{prefix}vllm_enable_lora") and job.flag("trainer.lora"):
        job.settings["engine.lora"] = derive_setting(lora, True)
        job.settings["update.merges_lora"] = derive_setting(lora, False)
    elif not is_server or document.engine_script:
        set_default(job, "engine.lora", False, of)
        set_default(job, "update.merges_lora", True, of)
    asynchronous = find_written(document, "async_generate")
    if asynchronous is not None and is_switched_on(document, "async_generate"):
        job.settings["algorithm.lag"] = derive_setting(asynchronous, 1)
    else:
        set_default(job, "algorithm.lag", 0, of)


def _apply_vllm_options(job: Job, document: Document, prefix: str) -> None:
    """Apply the keys ``vllm_x`` that ms-swift passes on as x, and its ``vllm_engine_kwargs``. prefix: of the server's keys."""
    passed = split_names("disable_cascade_attn speculative_config quantization max_model_len enable_prefix_caching")
    arguments: dict[str, ResolvedValue] = {}
    for name in passed | ({"tensor_parallel_size"} if prefix else frozenset()):
        found = find_written(document, f"{prefix}vllm_{name}")
        # A colocated engine is quantized only if the trained model is.
        if found is not None and (prefix or name not in ("quantization", "max_model_len", "enable_prefix_caching")):
            arguments[name] = found
    section = f"{prefix}{ENGINE_OPTIONS}"
    arguments |= read_section(document, section)
    apply_engine_arguments(job, "vllm", arguments, beside=split_names("load_format"))


def _set_correction(job: Job, document: Document, table: KeyTable, number: int, of: str) -> None:
    """Set the importance correction between vLLM and the trainer, and whether the engine's logprobs enter the loss."""
    mode = find_written(document, "rollout_importance_sampling_mode")
    key = table.find("rollout_importance_sampling_mode", number)
    if mode is not None and key is not None:
        name, like = str(mode.value), derive_setting(mode, str(mode.value))
    else:
        name, like = "none", Setting("none", "default", f"default of {of}")
    job.settings["algorithm.correction"] = like
    set_derived(job, "algorithm.uses_rollout_logprobs", name != "none", like)
    scope, _, action = name.partition("_")
    # The ratio of a sequence is the geometric mean of its tokens' (`_compute_sequence_level_ratios`).
    level = {"token": "token", "sequence": "geometric"}.get(scope, "none")
    bounds = None, find_written(document, "rollout_importance_sampling_threshold") or 2.0
    if action == "mask":
        set_weights(job, like, of, weight="token", mask=level, kept=bounds)
    else:
        set_weights(job, like, of, weight=level, cut=bounds)
    metrics = find_written(document, "log_rollout_offpolicy_metrics")
    if name == "none" and metrics is not None and is_switched_on(document, "log_rollout_offpolicy_metrics"):
        job.settings["rollout.logprobs"] = derive_setting(metrics, True)
    else:
        set_derived(job, "rollout.logprobs", name != "none", like)


def _read_python(script: PythonScript) -> Document | None:
    """Return the keywords of the last `RLHFArguments` that a script builds."""
    calls = [call for call in script.calls if call.ends_with("RLHFArguments", "MegatronRLHFArguments")]
    if not calls:
        return None
    document = calls[-1].to_document()
    document.script = calls[-1].name
    return document


FRAMEWORK = Framework(
    name="ms-swift",
    title=SWIFT,
    style="flags",
    sources={},
    signs=(("rlhf_type", "model"),),
    launches=re.compile(
        r"(\b(swift|megatron)\s+rlhf\b|\bswift[./]cli[./](_megatron[./])?rlhf\b)"
        r"(?!.*--rlhf_type[ =]+'?(dpo|orpo|simpo|kto|cpo|rm|ppo|gkd)\b)",
        re.DOTALL,
    ),
    config_options=("--config",),
    program=re.compile(r"((?<!\S)\S*/)?rlhf(\.py)?$|(?<!\S)\S*\.rlhf$"),
    engine_launches=re.compile(r"\bswift\s+rollout\b|\bswift[./]cli[./]rollout\b"),
    read_python=_read_python,
    package="swift",
    finish=_finish,
    data=("dataset", "val_dataset"),
)
