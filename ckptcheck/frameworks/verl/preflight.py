"""Reads verl's configurations: Hydra's YAML, and ``key=value`` on the command line of ``verl.trainer.main_ppo``.

Names and defaults: the generated reference configurations of volcengine/verl at b178a3cd5 (``ppo_trainer``,
``ppo_megatron_trainer``). verl computes its own logprobs at the rollout's temperature and without top-p and top-k
(``rollout.temperature`` goes into ``meta_info``), and clears the prefix cache at every update.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ckptcheck.jobs.document import Document
from ckptcheck.jobs.engine_flags import apply_engine_arguments
from ckptcheck.jobs.framework import (
    Bound,
    FieldSource,
    Framework,
    coerce,
    count_gpus,
    derive_setting,
    is_positive,
    name_backend,
    name_loss_weight,
    name_router_replay,
    normalize_dtype,
    read_section,
    read_setting,
    remove_settings,
    remove_unused_critic,
    set_default,
    set_derived,
    set_uneven_stages,
    set_weights,
    split_names,
)
from ckptcheck.jobs.interpolation import ResolvedValue, resolve
from ckptcheck.jobs.job import Job, Setting
from ckptcheck.jobs.key_names import is_read

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
CORRECTION = "algorithm.rollout_correction"
VERL = "verl"


def _backend(value: object) -> object:
    """Return the training engine, from `actor.strategy` or the group `model_engine`, in which dp is FSDP."""
    return "fsdp" if value == "dp" else name_backend(value)


def _name_of_correction(value: object) -> object:
    """Return the name of the correction that a value turns on, or "none".

    rollout_is and rollout_rs hold a name (token, sequence), in older versions true; tis_imp_ratio_cap holds a number.
    """
    if isinstance(value, (bool, int, float)):
        return "tis" if value is True or (not isinstance(value, bool) and value > 0) else "none"
    return str(value)


def _estimates_values(value: object) -> object:
    """Return whether a critic runs: critic.enable, or an advantage estimator that needs values (``need_critic``)."""
    return value if isinstance(value, bool) else str(value).lower() == "gae"


SOURCES = {
    "trainer.backend": FieldSource((f"{ACTOR}.strategy", "model_engine"), read=_backend),
    "trainer.v1": FieldSource(("trainer.use_v1",)),
    "trainer.temperature": FieldSource((f"{ROLLOUT}.temperature",)),
    "trainer.filters": FieldSource(),
    "engine.name": FieldSource((f"{ROLLOUT}.name",)),
    "engine.tp": FieldSource((f"{ROLLOUT}.tensor_model_parallel_size",)),
    "engine.dtype": FieldSource((f"{ROLLOUT}.dtype",), read=normalize_dtype),
    "engine.quantization": FieldSource((f"{ROLLOUT}.quantization",)),
    "engine.max_model_len": FieldSource((f"{ROLLOUT}.max_model_len",)),
    "engine.memory": FieldSource((f"{ROLLOUT}.gpu_memory_utilization",)),
    "engine.logprobs": FieldSource((f"{ROLLOUT}.logprobs_mode",), read=lambda value: str(value).partition("_")[0]),
    "engine.prefix_caching": FieldSource((f"{ROLLOUT}.enable_prefix_caching",)),
    "engine.chunked_prefill": FieldSource((f"{ROLLOUT}.enable_chunked_prefill",)),
    "rollout.temperature": FieldSource((f"{ROLLOUT}.temperature",)),
    "rollout.top_p": FieldSource((f"{ROLLOUT}.top_p",)),
    "rollout.top_k": FieldSource((f"{ROLLOUT}.top_k",)),
    "rollout.repetition_penalty": FieldSource((f"{ROLLOUT}.repetition_penalty",)),
    "rollout.n": FieldSource((f"{ROLLOUT}.n",)),
    "algorithm.loss_weight": FieldSource(("actor_rollout_ref.actor.policy_loss.loss_mode",), read=name_loss_weight),
    "rollout.prompt_length": FieldSource((f"{ROLLOUT}.prompt_length", "data.max_prompt_length")),
    "rollout.response_length": FieldSource((f"{ROLLOUT}.response_length", "data.max_response_length")),
    "rollout.logprobs": FieldSource((f"{ROLLOUT}.calculate_log_probs",)),
    "update.clears_cache": FieldSource(),
    "update.in_flight": FieldSource(("async_training.partial_rollout",)),
    "algorithm.correction": FieldSource(
        (
            f"{CORRECTION}.rollout_is",
            f"{CORRECTION}.rollout_rs",
            "algorithm.rollout_is",
            f"{ACTOR}.tis_imp_ratio_cap",
        ),
        read=_name_of_correction,
    ),
    "algorithm.bypass": FieldSource((f"{CORRECTION}.bypass_mode",)),
    "algorithm.lag": FieldSource(("async_training.staleness_threshold",)),
    "batch.train": FieldSource(("data.train_batch_size",)),
    "batch.mini": FieldSource((f"{ACTOR}.ppo_mini_batch_size",)),
    "batch.micro": FieldSource((f"{ACTOR}.ppo_micro_batch_size_per_gpu",)),
    "batch.balance": FieldSource(("trainer.balance_batch",)),
    "batch.dynamic": FieldSource((f"{ACTOR}.use_dynamic_bsz",)),
    "batch.log_prob_dynamic": FieldSource((f"{ROLLOUT}.log_prob_use_dynamic_bsz",)),
    "critic.enabled": FieldSource(("critic.enable", "algorithm.adv_estimator"), read=_estimates_values),
    "critic.backend": FieldSource(("critic.strategy",), read=_backend),
    "critic.num_labels": FieldSource(("critic.model.num_labels", "critic.model.override_config.num_labels")),
    "checkpoint.model": FieldSource(("actor_rollout_ref.model.path",)),
    "checkpoint.critic": FieldSource(("critic.model.path",)),
    "trainer.router_replay": FieldSource(
        (f"{ACTOR}.megatron.router_replay.mode", f"{ACTOR}.veomni.router_replay.mode", f"{ACTOR}.router_replay.mode"),
        read=name_router_replay,
    ),
    "trainer.tokenizer": FieldSource(("actor_rollout_ref.model.tokenizer_path",)),
    "trainer.chat_template": FieldSource(("actor_rollout_ref.model.custom_chat_template",)),
    "trainer.deterministic": FieldSource(
        (
            f"{ACTOR}.fsdp_config.full_determinism",
            f"{ACTOR}.veomni.full_determinism",
            f"{ACTOR}.torchtitan.full_determinism",
            f"{ACTOR}.automodel.full_determinism",
            f"{ACTOR}.megatron.full_determinism",
            f"{ACTOR}.megatron.override_transformer_config.deterministic_mode",
        )
    ),
    "trainer.lora": FieldSource(
        ("actor_rollout_ref.model.lora_rank", "actor_rollout_ref.model.lora.rank"), read=is_positive
    ),
    "trainer.trains_draft": FieldSource(("actor_rollout_ref.model.mtp.enable_train",)),
    "engine.routed_experts": FieldSource((f"{ROLLOUT}.enable_rollout_routing_replay",)),
    "engine.deterministic": FieldSource((f"{ROLLOUT}.full_determinism",)),
    "engine.load_format": FieldSource((f"{ROLLOUT}.load_format",)),
    "update.merges_lora": FieldSource(("actor_rollout_ref.model.lora.merge",)),
    "update.transport": FieldSource((f"{ROLLOUT}.checkpoint_engine.backend",)),
    "save.asynchronous": FieldSource((f"{ACTOR}.checkpoint.async_save",)),
    "save.interval": FieldSource(("trainer.save_freq",)),
    "save.directory": FieldSource(("trainer.default_local_dir",)),
}
MEGATRON = {
    "trainer.tp": FieldSource((f"{ACTOR}.megatron.tensor_model_parallel_size",)),
    "trainer.pp": FieldSource((f"{ACTOR}.megatron.pipeline_model_parallel_size",)),
    "trainer.ep": FieldSource((f"{ACTOR}.megatron.expert_model_parallel_size",)),
    "trainer.cp": FieldSource((f"{ACTOR}.megatron.context_parallel_size",)),
    "trainer.dtype": FieldSource((f"{ACTOR}.megatron.dtype",), read=normalize_dtype),
    "trainer.attention_backend": FieldSource((f"{ACTOR}.megatron.override_transformer_config.attention_backend",)),
    "trainer.moe_permute_fusion": FieldSource((f"{ACTOR}.megatron.override_transformer_config.moe_permute_fusion",)),
    "trainer.remove_padding": FieldSource(("actor_rollout_ref.model.use_remove_padding",)),
    "trainer.vpp": FieldSource((f"{ACTOR}.megatron.virtual_pipeline_model_parallel_size",)),
    "checkpoint.trainer": FieldSource((f"{ACTOR}.megatron.dist_checkpointing_path",)),
}
CRITIC_MEGATRON = {
    "critic.tp": FieldSource(("critic.megatron.tensor_model_parallel_size",)),
    "critic.pp": FieldSource(("critic.megatron.pipeline_model_parallel_size",)),
    "critic.vpp": FieldSource(("critic.megatron.virtual_pipeline_model_parallel_size",)),
    "critic.ep": FieldSource(("critic.megatron.expert_model_parallel_size",)),
    "critic.cp": FieldSource(("critic.megatron.context_parallel_size",)),
}
FSDP = {
    "trainer.dtype": FieldSource((f"{ACTOR}.fsdp_config.dtype",), read=normalize_dtype),
    "trainer.remove_padding": FieldSource(("actor_rollout_ref.model.use_remove_padding",)),
}
SEQUENCE_PARALLEL = (
    f"{ACTOR}.ulysses_sequence_parallel_size",
    f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size",
    f"{ACTOR}.veomni.ulysses_parallel_size",
    f"{ACTOR}.torchtitan.context_parallel_size",
    f"{ACTOR}.automodel.cp_size",
)
"""Keys that spread a sequence over ranks, one for each training engine; Megatron's is trainer.cp."""
ASCEND = ("ASCEND_", "HCCL_", "VLLM_ASCEND_")
"""Beginnings of the environment variables that scripts for Huawei's processors export."""
OWN_TRAINER = re.compile(r"one_step_off|fully_async")
"""Entry points that do not ask trainer.use_v1."""
METRICS_OF_BYPASS = {
    True: ("training/rollout_probs_diff_* and rollout_corr/*", "actor/ppo_kl"),
    False: ("training/rollout_probs_diff_*", "rollout_corr/*"),
}
"""Whether the V1 trainer runs → metrics of the gap that it does not compute in bypass mode, and the one that is left."""
ROLLOUT_KEYS = split_names("""
    _target_ name mode temperature top_k top_p do_sample n prompt_length response_length dtype gpu_memory_utilization
    ignore_eos enforce_eager cudagraph_capture_sizes free_cache_engine tensor_model_parallel_size data_parallel_size
    expert_parallel_size pipeline_model_parallel_size max_num_batched_tokens max_model_len max_num_seqs
    enable_chunked_prefill enable_prefix_caching logprobs_mode scheduling_policy load_format layered_summon layer_name_map
    log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz log_prob_max_token_len_per_gpu
    disable_log_stats over_sample_rate multi_stage_wake_up engine_kwargs val_kwargs multi_turn calculate_log_probs agent
    checkpoint_engine trace skip_rollout skip_dump_dir skip_tokenizer_init enable_rollout_routing_replay profiler
    prometheus quantization quantization_config_file mtp seed enable_sleep_mode limit_images repetition_penalty
    update_weights_bucket_megabytes sglang_engine_mode server use_fire_sampling nnodes n_gpus_per_node qat custom
    raw_response
    checkpoint_manager_class disaggregation full_determinism moe_load_balance_metrics_interval moe_tensor_parallel_size
    standalone_gpu_memory_utilization
""")
CORRECTION_KEYS = split_names("""
    rollout_is rollout_is_threshold rollout_rs rollout_rs_threshold rollout_rs_threshold_lower
    rollout_token_veto_threshold bypass_mode loss_type rollout_is_batch_normalize use_policy_gradient
    bypass_old_logprob_for_rollout
""")


REJECTED = {"token_k1": "token", "seq_sum_k1": "sequence", "seq_mean_k1": "geometric"}
"""rollout_rs → whose ratio leaves tokens out. k2 and k3 are distances, which this table does not name."""


def _set_weights(job: Job, document: Document) -> None:
    """Set the importance weights (`rollout_corr_helper.py`). In bypass mode the loss has one ratio, against the engine."""
    level, threshold = (resolve(document, f"{CORRECTION}.{key}") for key in ("rollout_is", "rollout_is_threshold"))
    rejected, bounds = (resolve(document, f"{CORRECTION}.{key}") for key in ("rollout_rs", "rollout_rs_threshold"))
    cap = resolve(document, f"{ACTOR}.tis_imp_ratio_cap")
    like = job["algorithm.correction"]
    if job.text("algorithm.correction") == "none":
        set_weights(job, like, VERL)
    elif cap is not None and isinstance(cap.value, (int, float)) and cap.value > 0 and level is None:
        set_weights(job, like, VERL, weight="token", cut=(None, cap))
    normalized = resolve(document, f"{CORRECTION}.rollout_is_batch_normalize")
    if job.flag("algorithm.bypass") or level is None or (normalized is not None and normalized.value is not False):
        return  # by the mean of the batch: none of the forms that `FIELDS` has
    weight = str(level.value) if level.value in ("token", "sequence") else "none"
    lower, upper = _split_bounds(threshold, 2.0)
    mask = REJECTED.get(str(rejected.value), "none") if rejected is not None else "none"
    if weight != "none" and lower is not None:
        # "0.5_5.0": weights outside of these are 0.
        set_weights(job, like, VERL, weight=weight, mask=weight, kept=(lower, upper))
    elif weight != "none" or mask != "none":
        low, high = _split_bounds(bounds, None)
        if isinstance(high, ResolvedValue) and isinstance(high.value, (int, float)) and low is None:
            low = 1 / high.value
        set_weights(job, like, VERL, weight=weight, cut=(None, upper), mask=mask, kept=(low, high))
        if rejected is not None and mask != "none":
            job.settings["algorithm.mask"] = derive_setting(rejected, mask)


def _split_bounds(found: ResolvedValue | None, default: float | None) -> tuple[Bound, Bound]:
    """Return the lower and the upper bound of a threshold: a number, or the text ``0.5_5.0``."""
    if found is None or found.value is None:
        return None, default
    lower, mark, upper = str(found.value).rpartition("_")
    parts = [coerce(part, "number") for part in (lower, upper)]
    numbers = [replace(found, value=part) if part is not None else None for part in parts]
    return (numbers[0] if mark else None), numbers[1]


def _finish(job: Job, document: Document) -> None:
    """Set the engine's arguments and the fields that depend on several keys."""
    megatron = _is_megatron(job, document)
    for name, source in (MEGATRON if megatron else FSDP).items():
        job.settings[name] = read_setting(job, document, name, source)
    _read_critic(job, document, megatron)
    engine = job.engine
    apply_engine_arguments(job, engine, read_section(document, f"{ROLLOUT}.engine_kwargs.{engine}"))
    if job.text("trainer.backend") == "fsdp" and job["trainer.router_replay"].status == "set":
        # Only the engines for Megatron and VeOmni have it (`engine_workers.py`).
        job.settings["trainer.router_replay"] = Setting("none", "default", "verl's FSDP engine does not replay")
    fused = resolve(document, "actor_rollout_ref.model.use_fused_kernels")
    if job.text("trainer.dtype") == "bfloat16" and not (fused is not None and (fused.value is True or fused.reason)):
        set_default(job, "trainer.fp32_head", False, VERL)
    _set_draft(job, document)
    if job.defaults is not None and OWN_TRAINER.search(job.defaults.script):
        job.settings["trainer.v1"] = Setting(
            False, "default", "default of this entry point, which has a trainer of its own"
        )
    if job.flag("algorithm.bypass") and (v1 := job.flag("trainer.v1")) is not None:
        lost, left = METRICS_OF_BYPASS[v1]
        set_derived(job, "metrics.lost", lost, job["algorithm.bypass"])
        set_derived(job, "metrics.left", left, job["algorithm.bypass"])
    count_gpus(job, document, ("trainer.nnodes", "trainer.n_gpus_per_node"), VERL)
    if job.flag("critic.enabled"):
        set_derived(job, "critic.world", job["trainer.world"].value, job["trainer.world"])
    set_default(job, "algorithm.unbounded_lag", False, VERL)
    keys = (f"{ACTOR}.use_rollout_log_probs", "async_training.use_rollout_log_probs")
    use_logprobs = next(
        (found for key in keys if is_read("verl", key, job.defaults) and (found := resolve(document, key))), None
    )
    uses = (
        job.text("algorithm.correction") not in ("none", None)
        or job.flag("algorithm.bypass")
        or bool(use_logprobs and use_logprobs.value is True)
    )
    set_derived(job, "algorithm.uses_rollout_logprobs", uses, job["algorithm.correction"])
    _set_weights(job, document)
    length = resolve(document, f"{ACTOR}.ppo_max_token_len_per_gpu")
    if job.flag("batch.dynamic") and length is not None and isinstance(length.value, int):
        # A sequence is spread over the ranks of context or sequence parallelism.
        parts = [resolve(document, key) for key in SEQUENCE_PARALLEL]
        unresolved = next((part.reason for part in parts if part is not None and part.reason), "")
        sizes = [part.value for part in parts if part is not None and isinstance(part.value, int) and part.value > 0]
        ranks = max([job.number("trainer.cp") or 1, *sizes])
        job.settings["trainer.max_length"] = (
            Setting(None, "unresolved", unresolved, length.leaf)
            if unresolved
            else Setting(int(length.value * ranks), "set", "", length.leaf)
        )
    _remove_trainer_of_generation(job, document)
    if any(name.startswith(ASCEND) for name in document.environment):
        # Transformer Engine, whose faults these settings avoid, does not run there.
        remove_settings(job, "trainer.attention_backend", "trainer.moe_permute_fusion")


def _remove_trainer_of_generation(job: Job, document: Document) -> None:
    """Remove the settings of training from a job that only generates or evaluates."""
    if re.search(r"main_(generation|eval)", document.script):
        remove_settings(
            job,
            "trainer.",
            "algorithm.",
            "update.",
            "critic.",
            "batch.",
            "metrics.",
            "rollout.temperature",
            "rollout.top_",
        )


def _is_megatron(job: Job, document: Document) -> bool:
    """Return whether Megatron trains, and set the backend where only the name of the configuration says so."""
    if job["trainer.backend"].status == "default" and "megatron" in document.script:
        set_derived(
            job, "trainer.backend", "megatron", job["trainer.backend"], "the configuration that the launch line names"
        )
    return job.text("trainer.backend") == "megatron"


def _read_critic(job: Job, document: Document, megatron: bool) -> None:
    """Read the critic's layout if a critic runs. megatron: whether Megatron trains the actor."""
    for side, section in (("trainer", f"{ACTOR}.megatron"), ("critic", "critic.megatron")):
        set_uneven_stages(job, document, side, f"{section}.override_transformer_config")
    if megatron and job["critic.backend"].status == "unknown":
        # The standard configuration with Megatron's actor has Megatron's critic.
        set_derived(job, "critic.backend", "megatron", job["trainer.backend"])
    if job.text("critic.backend") == "megatron":
        for name, source in CRITIC_MEGATRON.items():
            job.settings[name] = read_setting(job, document, name, source)
    remove_unused_critic(job)


def _set_draft(job: Job, document: Document) -> None:
    """Set whether the engine speculates with the model's MTP layers, which verl then loads and sends with the model."""
    switches = [resolve(document, f"actor_rollout_ref.model.mtp.{name}") for name in ("enable", "enable_rollout")]
    if all(switch is not None and switch.value is True for switch in switches) and switches[1] is not None:
        job.settings["engine.draft"] = Setting(True, "set", "", switches[1].leaf)
        job.settings["engine.draft_method"] = Setting("mtp", "set", "", switches[1].leaf)


FRAMEWORK = Framework(
    name="verl",
    title="verl",
    style="hydra",
    is_hydra=True,
    sources=SOURCES,
    signs=(("actor_rollout_ref",),),
    launches=re.compile(
        r"\s-m\s+(verl|recipe)\.[\w.]{0,400}main\w*|\b(verl|recipe)/\S{0,400}main\w{0,100}\.py\b|\s[+]{0,2}actor_rollout_ref\.\w"
    ),
    standard=re.compile(r"(.*/)?ppo(_megatron)?_trainer(\.yaml)?"),
    known_keys={ROLLOUT: ROLLOUT_KEYS, CORRECTION: CORRECTION_KEYS},
    finish=_finish,
    data=("data.train_files", "data.val_files"),
)
