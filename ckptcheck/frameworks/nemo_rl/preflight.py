"""Reads NeMo-RL's configurations: OmegaConf's YAML with ``defaults:``, and overrides ``key=value``.

The overrides come after ``examples/run_*.py --config FILE``.

Names and defaults: examples/configs of NVIDIA-NeMo/RL at 7ea279abf and ``nemo_rl/models/generation/vllm/vllm_worker.py``:
it asks vLLM for processed logprobs, turns prefix caching on for GPUs since Ampere, and applies temperature, top-p and
top-k to its own logprobs too (``TrainingSamplingParams``).
"""

from __future__ import annotations

import operator
import re

from ckptcheck.jobs.document import Document
from ckptcheck.jobs.engine_flags import apply_engine_arguments
from ckptcheck.jobs.framework import (
    FieldSource,
    Framework,
    derive_setting,
    environment_flag,
    find_written,
    name_loss_weight,
    normalize_dtype,
    read_section,
    read_setting,
    set_derived,
    set_weights,
    split_names,
)
from ckptcheck.jobs.interpolation import resolve
from ckptcheck.jobs.job import Job, Setting

GENERATION, VLLM, LOSS, ASYNC = "policy.generation", "policy.generation.vllm_cfg", "loss_fn", "grpo.async_grpo"
MEGATRON, DTENSOR = "policy.megatron_cfg", "policy.dtensor_cfg"
NEMO = "NeMo-RL"


def _engine_dtype(value: object) -> object:
    return "bfloat16" if value == "fp8" else normalize_dtype(value)


def _quantization(value: object) -> object:
    return "fp8" if value == "fp8" else "none"


SOURCES = {
    "trainer.dtype": FieldSource(("policy.precision",), read=normalize_dtype),
    "trainer.temperature": FieldSource((f"{GENERATION}.temperature",)),
    "trainer.filters": FieldSource(),
    "trainer.max_length": FieldSource(("policy.max_total_sequence_length",)),
    "engine.name": FieldSource((f"{GENERATION}.backend",)),
    "rollout.temperature": FieldSource((f"{GENERATION}.temperature",)),
    "rollout.top_p": FieldSource((f"{GENERATION}.top_p",)),
    "rollout.top_k": FieldSource((f"{GENERATION}.top_k",)),
    "rollout.response_length": FieldSource((f"{GENERATION}.max_new_tokens",)),
    "rollout.n": FieldSource(("grpo.num_generations_per_prompt",)),
    "algorithm.loss_weight": FieldSource(("loss_fn.use_cispo",), read=name_loss_weight),
    "rollout.logprobs": FieldSource(),
    "algorithm.uses_rollout_logprobs": FieldSource((f"{LOSS}.use_importance_sampling_correction",)),
    "algorithm.correction": FieldSource(
        (f"{LOSS}.use_importance_sampling_correction",),
        read=lambda value: "importance sampling" if value is True else "none",
    ),
    "algorithm.forced_ratio": FieldSource((f"{LOSS}.force_on_policy_ratio",)),
    "batch.train": FieldSource(("grpo.num_prompts_per_step",)),
    "checkpoint.model": FieldSource(("policy.model_name",)),
    "trainer.router_replay": FieldSource(
        ("policy.router_replay.enabled",), "none", NEMO, lambda value: "rollout" if value is True else "none"
    ),
    "trainer.trains_draft": FieldSource(("policy.draft.enabled",), False, NEMO),
    "trainer.tokenizer": FieldSource(("policy.tokenizer.name",)),
    "trainer.chat_template": FieldSource(("policy.tokenizer.chat_template",)),
    "engine.colocated": FieldSource((f"{GENERATION}.colocated.enabled",), True, NEMO),
    "update.transport": FieldSource((f"{GENERATION}.refit_transport",)),
    "update.merges_lora": FieldSource((), True, NEMO),
    "update.sends_cache_scales": FieldSource((), True, NEMO),
    "save.interval": FieldSource(("checkpointing.save_period",)),
    "save.directory": FieldSource(("checkpointing.checkpoint_dir",)),
}
BY_VLLM = {
    "engine.tp": FieldSource((f"{VLLM}.tensor_parallel_size",)),
    "engine.dtype": FieldSource((f"{VLLM}.precision",), read=_engine_dtype),
    "engine.quantization": FieldSource((f"{VLLM}.precision",), read=_quantization),
    "engine.kv_cache_dtype": FieldSource((f"{VLLM}.kv_cache_dtype",)),
    "engine.max_model_len": FieldSource((f"{VLLM}.max_model_len",)),
    "engine.memory": FieldSource((f"{VLLM}.gpu_memory_utilization",)),
    "engine.logprobs": FieldSource((f"{VLLM}.logprobs_mode",), read=lambda value: str(value).partition("_")[0]),
    "engine.prefix_caching": FieldSource((f"{VLLM}.enable_prefix_caching",)),
}
BY_MEGATRON = {
    "trainer.tp": FieldSource((f"{MEGATRON}.tensor_model_parallel_size",)),
    "trainer.pp": FieldSource((f"{MEGATRON}.pipeline_model_parallel_size",)),
    "trainer.ep": FieldSource((f"{MEGATRON}.expert_model_parallel_size",)),
    "trainer.cp": FieldSource((f"{MEGATRON}.context_parallel_size",)),
    "trainer.attention_backend": FieldSource((f"{MEGATRON}.attention_backend",)),
    "trainer.moe_permute_fusion": FieldSource((f"{MEGATRON}.moe_permute_fusion",)),
    "trainer.router_bias": FieldSource((f"{MEGATRON}.moe_router_enable_expert_bias",)),
    "trainer.router_bias_update_rate": FieldSource((f"{MEGATRON}.moe_router_bias_update_rate",)),
    "trainer.fp8": FieldSource((f"{MEGATRON}.fp8_cfg.enabled",)),
    "trainer.fp32_head": FieldSource(
        (f"{MEGATRON}.fp32_lm_head",), read=lambda value: value is True or value == "tf32"
    ),
}
BY_MEGATRON |= {
    "trainer.vpp": FieldSource((f"{MEGATRON}.virtual_pipeline_model_parallel_size",)),
    "trainer.lora": FieldSource((f"{MEGATRON}.peft.enabled",), False, NEMO),
    "save.asynchronous": FieldSource((f"{MEGATRON}.checkpoint.async_save",), False, NEMO),
}
BY_DTENSOR = {
    "trainer.tp": FieldSource((f"{DTENSOR}.tensor_parallel_size",)),
    "trainer.cp": FieldSource((f"{DTENSOR}.context_parallel_size",)),
    "trainer.ep": FieldSource((f"{DTENSOR}.expert_parallel_size",)),
    "trainer.fp8": FieldSource(),
}
MTP = ("mtp", "deepseek_mtp")
"""vLLM's methods of speculating with the model's own layers."""
SERVING_TEMPLATE = "http_server_serving_chat_kwargs.chat_template"
FROZEN_ENCODER = re.compile(r"\.freeze_config\.freeze_(vision|audio|sound)_(model|tower|encoder)$")
GENERATION_KEYS = split_names("""
    port_range_low port_range_high backend max_new_tokens temperature top_p top_k val_temperature val_top_p val_top_k
    stop_token_ids stop_strings refit_transport real_quant_export_cpu_offload refit_cfg mcore_generation_config vllm_cfg
    vllm_kwargs colocated sglang_cfg sglang_kwargs trtllm_cfg trtllm_kwargs model_name quant_cfg dynamo_cfg
""")
VLLM_KEYS = split_names("""
    async_engine precision kv_cache_dtype logprobs_mode tensor_parallel_size pipeline_parallel_size expert_parallel_size
    gpu_memory_utilization max_model_len enforce_eager use_tqdm use_deep_gemm num_last_layers_in_bf16
    num_first_layers_in_bf16 enable_vllm_metrics_logger vllm_metrics_logger_interval http_refit_api_key_env_var
    reset_encoder_cache_after_weight_update http_refit_server_port zmq_refit_server_port distributed_executor_backend
    enable_prefix_caching load_format skip_tokenizer_init expose_http_server http_server_serving_chat_kwargs
    quantization_ignored_layer_kws pow2_weight_scaling_factors pow2_activation_scaling_factors use_activation_pow2_scale
    is_mx http_server_port compilation_config
""")


def _finish(job: Job, document: Document) -> None:
    """Set the engine's arguments and the fields that depend on several keys."""
    megatron, dtensor = (resolve(document, f"{section}.enabled") for section in (MEGATRON, DTENSOR))
    enabled, backend = (megatron, "megatron") if megatron and megatron.value is True else (dtensor, "dtensor")
    if enabled is not None and (enabled.value is True or enabled.reason):
        set_derived(
            job,
            "trainer.backend",
            backend,
            Setting(backend, "unresolved" if enabled.reason else "set", enabled.reason, enabled.leaf),
        )
    for name, source in (
        {"megatron": BY_MEGATRON, "dtensor": BY_DTENSOR}.get(job.text("trainer.backend") or "", {})
    ).items():
        job.settings[name] = read_setting(job, document, name, source)
    if job.engine == "vllm":
        for name, source in BY_VLLM.items():
            job.settings[name] = read_setting(job, document, name, source)
        apply_engine_arguments(job, "vllm", read_section(document, f"{GENERATION}.vllm_kwargs"))
        head = environment_flag(document, "NRL_VLLM_FP32_LM_HEAD")
        if head.status != "unknown":
            job.settings["engine.fp32_head"] = head
    _set_refit(job, document)
    threshold = resolve(document, "grpo.seq_logprob_error_threshold")
    if job.flag("algorithm.forced_ratio") and (threshold is None or threshold.value is None):
        # Only then the pass for old logprobs is skipped.
        for name in ("metrics.lost", "metrics.left"):
            job.settings[name] = read_setting(job, document, name, FieldSource())
    _set_weights(job, document)
    _set_update_and_lag(job, document)


def _set_weights(job: Job, document: Document) -> None:
    """Set the importance weights (`ClippedPGLossFn`): that of a sequence is the product of its ratios."""
    like = job["algorithm.correction"]
    if job.text("algorithm.correction") in ("none", None):
        set_weights(job, like, NEMO)
        return
    by_sequence = resolve(document, f"{LOSS}.sequence_level_importance_ratios")
    level = "token"
    if by_sequence is not None and by_sequence.value is True:
        level, like = "sequence", derive_setting(by_sequence, True)
    kind = find_written(document, f"{LOSS}.truncated_importance_sampling_type")
    high = find_written(document, f"{LOSS}.truncated_importance_sampling_ratio")
    bounds = find_written(document, f"{LOSS}.truncated_importance_sampling_ratio_min"), high
    if kind is not None and kind.value in ("icepop", "seq-mask-tis"):
        mask = "geometric" if kind.value == "seq-mask-tis" else level
        set_weights(job, like, NEMO, weight=level, mask=mask, kept=bounds)
    else:
        set_weights(job, like, NEMO, weight=level, cut=bounds if kind is not None else (None, None))


def _set_refit(job: Job, document: Document) -> None:
    """Set the fields of a refit of vLLM: router replay, the draft, the outputs of an encoder.

    Router replay sets vLLM's ``enable_return_routed_experts`` itself (``configure_vllm_for_router_replay``). A draft without
    tokens is no draft (``vllm_worker.py``), and vLLM's weights are dummies until the first refit, except where a draft
    that no refit sends makes NeMo-RL load them (``configure_generation_config``).
    """
    if job.text("trainer.router_replay") == "rollout" and job.engine == "vllm":
        set_derived(job, "engine.routed_experts", True, job["trainer.router_replay"])
    tokens = resolve(document, f"{GENERATION}.vllm_kwargs.speculative_config.num_speculative_tokens")
    if tokens is not None and tokens.value == 0:
        job.settings.pop("engine.draft", None)
    layers = resolve(document, f"{MEGATRON}.mtp_num_layers")
    if layers is not None and isinstance(layers.value, int) and job.text("engine.draft_method") in MTP:
        job.settings["trainer.trains_draft"] = Setting(layers.value > 0, "set", "", layers.leaf)
    for name, key in (("engine.renders_chats", "expose_http_server"), ("engine.chat_template", SERVING_TEMPLATE)):
        job.settings[name] = read_setting(job, document, name, FieldSource((f"{VLLM}.{key}",)))
    reset = resolve(document, f"{VLLM}.reset_encoder_cache_after_weight_update")
    asynchronous = resolve(document, f"{ASYNC}.enabled")
    sees = resolve(document, "policy.tokenizer.use_processor")
    frozen = any(leaf.value is True for key, leaf in document.leaves.items() if FROZEN_ENCODER.search(key))
    if (
        asynchronous is not None
        and asynchronous.value is True
        and sees is not None
        and sees.value is True
        and not frozen
    ):
        is_reset = reset is not None and reset.value is True
        leaf = reset.leaf if reset is not None else None
        job.settings["engine.keeps_encoder_cache"] = Setting(
            not is_reset, "set" if leaf else "default", f"default of {NEMO}", leaf
        )


def _set_update_and_lag(job: Job, document: Document) -> None:
    """Set the fields of weight updates and lag.

    With synchronous GRPO, vLLM sleeps between steps, which clears the prefix cache; asynchronous GRPO clears it only
    with recompute_kv_cache_after_weight_updates.
    """
    enabled = resolve(document, f"{ASYNC}.enabled")
    if enabled is None and job.is_incomplete:
        return
    if enabled is None or enabled.value is not True:
        job.settings["update.clears_cache"] = Setting(True, "default", f"default of {NEMO}: vLLM sleeps between steps")
        job.settings["algorithm.lag"] = Setting(0, "default", f"default of {NEMO}")
        return
    asynchronous = {
        "update.in_flight": FieldSource((f"{ASYNC}.in_flight_weight_updates",)),
        "update.clears_cache": FieldSource((f"{ASYNC}.recompute_kv_cache_after_weight_updates",)),
        "algorithm.lag": FieldSource((f"{ASYNC}.max_trajectory_age_steps",)),
    }
    for name, source in asynchronous.items():
        job.settings[name] = read_setting(job, document, name, source)
    if job.flag("update.in_flight"):
        set_derived(job, "update.pause_mode", "keep", job["update.in_flight"])


FRAMEWORK = Framework(
    name="nemo-rl",
    title=NEMO,
    style="hydra",
    is_hydra=True,
    # nemo_rl/utils/config.py, register_omegaconf_resolvers
    resolvers={"add": operator.add, "mul": operator.mul, "div": operator.truediv, "max": max},
    sources=SOURCES,
    signs=(
        ("policy.generation",),
        ("policy.megatron_cfg",),
        ("policy.dtensor_cfg",),
        ("policy", "grpo"),
        ("policy", "loss_fn"),
    ),
    launches=re.compile(r"\brun_(grpo|sft|dpo|rm|distillation|eval|vlm|sliding|async|ppo|opd)\w*\.py\b"),
    known_keys={GENERATION: GENERATION_KEYS, VLLM: VLLM_KEYS},
    finish=_finish,
    data=("data.train_data_path", "data.val_data_path", "data.train.data_path", "data.validation.data_path"),
    ports=(
        ("policy.generation.vllm_cfg.http_server_port", ""),
        ("policy.generation.vllm_cfg.http_refit_server_port", ""),
        ("policy.generation.vllm_cfg.zmq_refit_server_port", ""),
    ),
)
