"""Reads launch scripts of slime and miles: a shell script whose arrays of ``--flags`` go to train.py or train_async.py.

Flags are slime's own, Megatron's, and SGLang's with ``--sglang-`` before them. Names and defaults:
``slime/utils/arguments.py`` of THUDM/slime, Megatron's arguments. slime divides its own logits by the rollout's
temperature (vllm-project/vime#64), and pauses and flushes SGLang at every update.
"""

from __future__ import annotations

import re

from ckptcheck.preflight.document import Document
from ckptcheck.preflight.engine_flags import apply_engine_arguments
from ckptcheck.preflight.framework import (
    FieldSource,
    Framework,
    count_gpus,
    environment_flag,
    set_derived,
)
from ckptcheck.preflight.interpolation import ResolvedValue, resolve
from ckptcheck.preflight.job import Job, Setting, UnknownKey
from ckptcheck.preflight.readers.slime_flags import find_meant_flag

SLIME, MEGATRON = "slime", "Megatron"


def _dtype_of_fp16(value: object) -> object:
    return "float16" if value is True else "bfloat16"


def _is_set(value: object) -> object:
    return value not in (None, 0, False, "none")


SOURCES = {
    "trainer.backend": FieldSource(("train_backend",), "megatron", SLIME),
    "trainer.dtype": FieldSource(("fp16",), "bfloat16", SLIME, _dtype_of_fp16),
    "trainer.tp": FieldSource(("tensor_model_parallel_size",), 1, MEGATRON),
    "trainer.pp": FieldSource(("pipeline_model_parallel_size",), 1, MEGATRON),
    "trainer.ep": FieldSource(("expert_model_parallel_size",), 1, MEGATRON),
    "trainer.cp": FieldSource(("context_parallel_size",), 1, MEGATRON),
    "trainer.temperature": FieldSource(("rollout_temperature",), 1.0, SLIME),
    "trainer.filters": FieldSource((), False, SLIME),
    "trainer.attention_backend": FieldSource(("attention_backend",), "auto", MEGATRON),
    "trainer.moe": FieldSource(("num_experts",), False, MEGATRON, _is_set),
    "trainer.mla": FieldSource(("multi_latent_attention",), False, MEGATRON),
    "trainer.moe_permute_fusion": FieldSource(("moe_permute_fusion",), False, MEGATRON),
    "trainer.router_bias_update_rate": FieldSource(("moe_router_bias_update_rate",)),
    "trainer.fp8": FieldSource(("fp8_format",), False, MEGATRON, _is_set),
    "trainer.attention_dropout": FieldSource(("attention_dropout",), 0.1, MEGATRON),
    "trainer.hidden_dropout": FieldSource(("hidden_dropout",), 0.1, MEGATRON),
    "engine.name": FieldSource((), "sglang", SLIME),
    "engine.tp": FieldSource(("rollout_num_gpus_per_engine",), 1, SLIME),
    "engine.max_model_len": FieldSource(("rollout_max_context_len",)),
    "rollout.temperature": FieldSource(("rollout_temperature",), 1.0, SLIME),
    "rollout.top_p": FieldSource(("rollout_top_p",), 1.0, SLIME),
    "rollout.top_k": FieldSource(("rollout_top_k",), -1, SLIME),
    "rollout.n": FieldSource(("n_samples_per_prompt",), 1, SLIME),
    "rollout.prompt_length": FieldSource(("rollout_max_prompt_len",)),
    "rollout.response_length": FieldSource(("rollout_max_response_len",)),
    "rollout.logprobs": FieldSource((), True, SLIME),
    "algorithm.correction": FieldSource(("use_tis",), "none", SLIME, lambda value: "tis" if value is True else "none"),
    "update.pause_mode": FieldSource(("pause_generation_mode",)),
    "batch.train": FieldSource(("rollout_batch_size",)),
    "batch.balance": FieldSource(("balance_data",), False, SLIME),
    "batch.steps_per_rollout": FieldSource(("num_steps_per_rollout",)),
    "batch.responses": FieldSource(("global_batch_size",)),
    "debug.rollout_only": FieldSource(("debug_rollout_only",), False, SLIME),
    "debug.train_only": FieldSource(("debug_train_only",), False, SLIME),
    "debug.save_rollouts": FieldSource(("save_debug_rollout_data",)),
    "debug.load_rollouts": FieldSource(("load_debug_rollout_data",)),
    "debug.save_train": FieldSource(("save_debug_train_data",)),
    "checkpoint.model": FieldSource(("hf_checkpoint",)),
    "checkpoint.trainer": FieldSource(("load", "ref_load")),
}
IN_MODEL_SCRIPT = ("trainer.moe", "trainer.mla", "trainer.moe_permute_fusion")
"""Fields that slime's scripts/models/*.sh set: they stay unknown where a script sources such a file and it is missing."""


def _finish(job: Job, document: Document) -> None:
    """Set the engine's arguments and the fields that depend on several keys."""
    engine = {
        name.removeprefix("sglang_"): resolved
        for name in document.leaves
        if name.startswith("sglang_") and (resolved := resolve(document, name)) is not None
    }
    apply_engine_arguments(
        job, "sglang", engine, beside=frozenset(("router_ip", "router_port", "server_concurrency", "router_policy"))
    )
    for name, leaf in document.leaves.items():
        if not name.startswith("sglang_") and (meant := find_meant_flag(name)):
            job.unknown_keys.append(UnknownKey(leaf, near=f"--{meant.replace('_', '-')}", dropped_by=SLIME))
    raw = environment_flag(document, "SGLANG_RETURN_ORIGINAL_LOGPROB")
    if raw.is_known and raw.value is True:
        set_derived(job, "engine.logprobs", "raw", raw)
    if job.text("trainer.backend") != "megatron":
        for name in [name for name, setting in job.settings.items() if setting.source == f"default of {MEGATRON}"]:
            del job.settings[name]
    if document.notes:
        for name in [
            *IN_MODEL_SCRIPT,
            "trainer.attention_backend",
            "trainer.attention_dropout",
            "trainer.hidden_dropout",
        ]:
            if job[name].status == "default":
                del job.settings[name]
    if job["trainer.moe"].status != "set" and (job.number("trainer.ep") or 1) > 1:
        set_derived(job, "trainer.moe", True, job["trainer.ep"])
    # A file that could not be read may set what is missing.
    if job.flag("debug.rollout_only") and not document.notes:
        sizes = ("colocate", "rollout_num_gpus", "rollout_external_engine_addrs")
        set_derived(job, "debug.sized", any(document.has(key) for key in sizes), job["debug.rollout_only"])
    loss = resolve(document, "loss_type")
    if job.flag("debug.train_only") and not document.notes:
        sources = ("rollout_function_path", "load_forge_rollout_data", "data_source_path", "loss_type")
        set_derived(job, "debug.has_data", any(document.has(key) for key in sources), job["debug.train_only"])
    is_sft = loss is not None and loss.value == "sft_loss"
    # Recorded rollouts take the engine's place, and slime then sets --debug-train-only itself.
    if is_sft or job.flag("debug.train_only") or job.text("debug.load_rollouts") is not None:
        _forget(job, "engine.", "rollout.", "algorithm.", "update.")
        return
    if job.flag("debug.rollout_only"):
        _forget(job, "trainer.", "algorithm.", "update.")
        return
    _set_update_and_lag(job, document)
    count_gpus(job, document, ("actor_num_nodes", "actor_num_gpus_per_node"), SLIME)
    use_logprobs = resolve(document, "use_rollout_logprobs")
    uses = job.text("algorithm.correction") == "tis" or bool(use_logprobs and use_logprobs.value is True)
    set_derived(
        job,
        "algorithm.uses_rollout_logprobs",
        uses,
        Setting(uses, "set", "", use_logprobs.leaf) if use_logprobs else job["algorithm.correction"],
    )


def _forget(job: Job, *beginnings: str) -> None:
    """Remove the settings of what the job does not start."""
    for name in [name for name in job.settings if name.startswith(beginnings)]:
        del job.settings[name]


def _set_update_and_lag(job: Job, document: Document) -> None:
    """Set the fields of weight updates and lag."""
    mode = job["update.pause_mode"]
    if mode.is_known:
        set_derived(job, "update.clears_cache", mode.value != "in_place", mode)
        set_derived(job, "update.in_flight", mode.value in ("in_place", "retract"), mode)
    else:
        job.settings["update.clears_cache"] = Setting(True, "default", f"default of {SLIME}")
    asynchronous = "train_async" in document.script or resolve(document, "fully_async") is not None
    bound: ResolvedValue | None = resolve(document, "max_weight_staleness")
    if bound is not None and isinstance(bound.value, int):
        job.settings["algorithm.lag"] = Setting(bound.value, "set", "", bound.leaf)
    else:
        job.settings["algorithm.lag"] = Setting(
            int(asynchronous), "default", f"default of {'train_async.py' if asynchronous else SLIME}"
        )


FRAMEWORK = Framework(
    name="slime",
    title="slime",
    style="flags",
    sources=SOURCES,
    signs=(("hf_checkpoint", "rollout_batch_size"), ("hf_checkpoint", "rollout_num_gpus_per_engine")),
    launches=re.compile(
        r"\btrain(_async)?\.py\b.*--(hf-checkpoint|rollout-|sglang-|actor-num|advantage-estimator)", re.DOTALL
    ),
    finish=_finish,
)
