"""NeMo-RL: OmegaConf's YAML with ``defaults:``, and ``key=value`` after ``examples/run_*.py --config FILE``.

Names and defaults: examples/configs of NVIDIA-NeMo/RL at 7ea279abf and ``nemo_rl/models/generation/vllm/vllm_worker.py``:
it asks vLLM for processed logprobs, turns prefix caching on for GPUs since Ampere, and applies temperature, top-p and
top-k to its own logprobs too (``TrainingSamplingParams``).
"""

from __future__ import annotations

import re

from ckptcheck.preflight.document import Document
from ckptcheck.preflight.engine_flags import arguments_below, take
from ckptcheck.preflight.framework import Framework, Source, dtype, environment_flag, names, set_to, setting_of
from ckptcheck.preflight.interpolation import look
from ckptcheck.preflight.job import Job, Setting

GENERATION, VLLM, LOSS, ASYNC = "policy.generation", "policy.generation.vllm_cfg", "loss_fn", "grpo.async_grpo"
MEGATRON, DTENSOR = "policy.megatron_cfg", "policy.dtensor_cfg"
NEMO = "NeMo-RL"


def _engine_dtype(value: object) -> object:
    return "bfloat16" if value == "fp8" else dtype(value)


def _quantization(value: object) -> object:
    return "fp8" if value == "fp8" else "none"


SOURCES = {
    "trainer.dtype": Source(("policy.precision",), read=dtype),
    "trainer.temperature": Source((f"{GENERATION}.temperature",)),
    "trainer.filters": Source((), True, NEMO),
    "trainer.max_length": Source(("policy.max_total_sequence_length",)),
    "engine.name": Source((f"{GENERATION}.backend",)),
    "rollout.temperature": Source((f"{GENERATION}.temperature",)),
    "rollout.top_p": Source((f"{GENERATION}.top_p",)),
    "rollout.top_k": Source((f"{GENERATION}.top_k",), -1, NEMO),
    "rollout.response_length": Source((f"{GENERATION}.max_new_tokens",)),
    "rollout.n": Source(("grpo.num_generations_per_prompt",)),
    "rollout.logprobs": Source((), True, NEMO),
    "algorithm.uses_rollout_logprobs": Source((f"{LOSS}.use_importance_sampling_correction",), False, NEMO),
    "algorithm.correction": Source(
        (f"{LOSS}.use_importance_sampling_correction",),
        "none",
        NEMO,
        lambda value: "importance sampling" if value is True else "none",
    ),
    "algorithm.forced_ratio": Source((f"{LOSS}.force_on_policy_ratio",), False, NEMO),
    "batch.train": Source(("grpo.num_prompts_per_step",)),
    "checkpoint.model": Source(("policy.model_name",)),
}
BY_VLLM = {
    "engine.tp": Source((f"{VLLM}.tensor_parallel_size",)),
    "engine.dtype": Source((f"{VLLM}.precision",), read=_engine_dtype),
    "engine.quantization": Source((f"{VLLM}.precision",), "none", NEMO, _quantization),
    "engine.kv_cache_dtype": Source((f"{VLLM}.kv_cache_dtype",), "auto", NEMO),
    "engine.max_model_len": Source((f"{VLLM}.max_model_len",)),
    "engine.logprobs": Source(
        (f"{VLLM}.logprobs_mode",), "processed", NEMO, lambda value: str(value).partition("_")[0]
    ),
    "engine.prefix_caching": Source((f"{VLLM}.enable_prefix_caching",), True, f"{NEMO} on Ampere and later"),
}
BY_MEGATRON = {
    "trainer.tp": Source((f"{MEGATRON}.tensor_model_parallel_size",)),
    "trainer.pp": Source((f"{MEGATRON}.pipeline_model_parallel_size",)),
    "trainer.ep": Source((f"{MEGATRON}.expert_model_parallel_size",)),
    "trainer.cp": Source((f"{MEGATRON}.context_parallel_size",)),
    "trainer.attention_backend": Source((f"{MEGATRON}.attention_backend",)),
    "trainer.moe_permute_fusion": Source((f"{MEGATRON}.moe_permute_fusion",)),
    "trainer.router_bias_update_rate": Source((f"{MEGATRON}.moe_router_bias_update_rate",)),
    "trainer.fp8": Source((f"{MEGATRON}.fp8_cfg.enabled",), False, NEMO),
    "trainer.fp32_head": Source(
        (f"{MEGATRON}.fp32_lm_head",), False, NEMO, lambda value: value is True or value == "tf32"
    ),
}
BY_DTENSOR = {
    "trainer.tp": Source((f"{DTENSOR}.tensor_parallel_size",)),
    "trainer.cp": Source((f"{DTENSOR}.context_parallel_size",)),
    "trainer.ep": Source((f"{DTENSOR}.expert_parallel_size",)),
    "trainer.fp8": Source((), False, NEMO),
}
GENERATION_KEYS = names("""
    port_range_low port_range_high backend max_new_tokens temperature top_p top_k val_temperature val_top_p val_top_k
    stop_token_ids stop_strings refit_transport real_quant_export_cpu_offload refit_cfg mcore_generation_config vllm_cfg
    vllm_kwargs colocated sglang_cfg sglang_kwargs trtllm_cfg trtllm_kwargs model_name quant_cfg dynamo_cfg
""")
VLLM_KEYS = names("""
    async_engine precision kv_cache_dtype logprobs_mode tensor_parallel_size pipeline_parallel_size expert_parallel_size
    gpu_memory_utilization max_model_len enforce_eager use_tqdm use_deep_gemm num_last_layers_in_bf16
    num_first_layers_in_bf16 enable_vllm_metrics_logger vllm_metrics_logger_interval http_refit_api_key_env_var
    reset_encoder_cache_after_weight_update http_refit_server_port zmq_refit_server_port distributed_executor_backend
    enable_prefix_caching load_format skip_tokenizer_init expose_http_server http_server_serving_chat_kwargs
    quantization_ignored_layer_kws pow2_weight_scaling_factors pow2_activation_scaling_factors use_activation_pow2_scale
    is_mx http_server_port compilation_config
""")


def _finish(job: Job, document: Document) -> None:
    megatron, dtensor = (look(document, f"{section}.enabled") for section in (MEGATRON, DTENSOR))
    chosen, backend = (megatron, "megatron") if megatron and megatron.value is True else (dtensor, "dtensor")
    if chosen is not None and (chosen.value is True or chosen.reason):
        set_to(
            job,
            "trainer.backend",
            backend,
            Setting(backend, "unresolved" if chosen.reason else "set", chosen.reason, chosen.leaf),
        )
    for name, source in (
        {"megatron": BY_MEGATRON, "dtensor": BY_DTENSOR}.get(job.text("trainer.backend") or "", {})
    ).items():
        job.settings[name] = setting_of(job, document, name, source)
    if job.engine == "vllm":
        for name, source in BY_VLLM.items():
            job.settings[name] = setting_of(job, document, name, source)
        take(
            job,
            "vllm",
            arguments_below(document.leaves, lambda path: look(document, path), f"{GENERATION}.vllm_kwargs"),
        )
        head = environment_flag(document, "NRL_VLLM_FP32_LM_HEAD")
        if head.status != "unknown":
            job.settings["engine.fp32_head"] = head
    if (job.number("trainer.ep") or 1) > 1:
        set_to(job, "trainer.moe", True, job["trainer.ep"])
    if job.number("trainer.ep") == 1 and job.flag("trainer.moe") is None:
        job.settings.pop("trainer.moe", None)
    _asynchronous(job, document)


def _asynchronous(job: Job, document: Document) -> None:
    """Synchronous GRPO lets vLLM sleep between steps, which clears the cache; asynchronous GRPO does so if it is told to."""
    enabled = look(document, f"{ASYNC}.enabled")
    if enabled is None and job.incomplete:
        return
    if enabled is None or enabled.value is not True:
        job.settings["update.clears_cache"] = Setting(True, "default", f"default of {NEMO}: vLLM sleeps between steps")
        job.settings["algorithm.lag"] = Setting(0, "default", f"default of {NEMO}")
        return
    asynchronous = {
        "update.in_flight": Source((f"{ASYNC}.in_flight_weight_updates",), False, NEMO),
        "update.clears_cache": Source((f"{ASYNC}.recompute_kv_cache_after_weight_updates",), False, NEMO),
        "algorithm.lag": Source((f"{ASYNC}.max_trajectory_age_steps",), 1, NEMO),
    }
    for name, source in asynchronous.items():
        job.settings[name] = setting_of(job, document, name, source)
    if job.flag("update.in_flight"):
        set_to(job, "update.pause_mode", "keep", job["update.in_flight"])


FRAMEWORK = Framework(
    name="nemo-rl",
    title=NEMO,
    style="hydra",
    sources=SOURCES,
    signs=(
        ("policy.generation",),
        ("policy.megatron_cfg",),
        ("policy.dtensor_cfg",),
        ("policy", "grpo"),
        ("policy", "loss_fn"),
    ),
    launches=re.compile(r"\brun_(grpo|sft|dpo|rm|distillation|eval|vlm|sliding|async|ppo|opd)\w*\.py\b"),
    modelled={GENERATION: GENERATION_KEYS, VLLM: VLLM_KEYS},
    finish=_finish,
)
