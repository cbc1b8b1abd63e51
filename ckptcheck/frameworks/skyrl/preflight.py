"""Reads SkyRL's jobs: ``python -m skyrl.train.entrypoints.main_base a.b=c``, a script of the user's with such keys, or their YAML.

Keys and defaults, release by release: ``keys.json``, learned from NovaSky-AI/SkyRL up to a9564572e (August 2026): from the
dataclasses of ``skyrl/train/config/config.py``, and before March 2026 from ``skyrl_train/config/ppo_base_config.yaml``. A job is
read by the newest release that knows the most of its keys.

What the settings do, at a9564572e:

- vLLM gets no logprobs_mode, so its own default holds: raw logprobs (``build_vllm_cli_args``).
- The trainer divides its logits by trainer.algorithm.temperature, which follows the rollout's (``SkyRLTrainConfig.__post_init__``);
  it applies no top-p and no top-k. repetition_penalty is not forwarded; penalties come in additional_kwargs (``engine_utils``).
- FSDP and Megatron compute in bfloat16 (``autocast``, ``MixedPrecisionPolicy``); Megatron's attention is flash or fused
  (``megatron_worker``).
- A synchronous job resets vLLM's prefix cache at every sync, and a colocated one sleeps at level 2 (1 where LoRA adapters are
  sent). Fully asynchronous training pauses requests and keeps them, and salts the cache by version (``use_cache_salt``).
- The engine's logprobs enter the loss with off_policy_correction, and with the losses rollout_is, dppo and an anchored cispo.
"""

from __future__ import annotations

import re
from pathlib import Path

from ckptcheck.jobs.document import Document
from ckptcheck.jobs.engine_flags import DEFAULTS, apply_engine_arguments
from ckptcheck.jobs.framework import (
    Bound,
    FieldSource,
    Framework,
    count_gpus,
    derive_setting,
    find_written,
    is_positive,
    leave_out_unresolved,
    name_backend,
    name_loss_weight,
    normalize_dtype,
    read_section,
    read_setting,
    remove_settings,
    remove_unused_critic,
    set_derived,
    set_weights,
)
from ckptcheck.jobs.interpolation import ResolvedValue, resolve
from ckptcheck.jobs.job import Job, Setting
from ckptcheck.jobs.key_table import load_key_table, set_from_table

SKYRL = "SkyRL"
SECTIONS = frozenset(("trainer", "generator", "data"))
MEGATRON = "trainer.policy.megatron_config"
TRANSFORMER = f"{MEGATRON}.transformer_config_kwargs"
ENGINE, SAMPLING, ALGORITHM = "generator.inference_engine", "generator.sampling_params", "trainer.algorithm"
CORRECTION = f"{ALGORITHM}.off_policy_correction"


def _in_engine(name: str, older: str = "") -> tuple[str, ...]:
    """Return the paths of a setting of the engine: in its own section, and directly in ``generator`` before March 2026."""
    return f"{ENGINE}.{name}", f"generator.{older or name}"


PATHS: dict[str, FieldSource] = {
    "trainer.backend": FieldSource(("trainer.strategy",), read=name_backend),
    "trainer.max_length": FieldSource(),
    "engine.name": FieldSource(_in_engine("backend")),
    "engine.tp": FieldSource(_in_engine("tensor_parallel_size", "inference_engine_tensor_parallel_size")),
    "engine.dtype": FieldSource(_in_engine("model_dtype"), read=normalize_dtype),
    "engine.memory": FieldSource(_in_engine("gpu_memory_utilization")),
    "engine.prefix_caching": FieldSource(_in_engine("enable_prefix_caching")),
    "rollout.temperature": FieldSource((f"{SAMPLING}.temperature",)),
    "rollout.top_p": FieldSource((f"{SAMPLING}.top_p",)),
    "rollout.top_k": FieldSource((f"{SAMPLING}.top_k",)),
    "rollout.min_p": FieldSource((f"{SAMPLING}.min_p",)),
    "rollout.repetition_penalty": FieldSource((f"{SAMPLING}.additional_kwargs.repetition_penalty",)),
    "rollout.presence_penalty": FieldSource((f"{SAMPLING}.additional_kwargs.presence_penalty",)),
    "rollout.frequency_penalty": FieldSource((f"{SAMPLING}.additional_kwargs.frequency_penalty",)),
    "rollout.prompt_length": FieldSource(("generator.max_input_length", "trainer.max_prompt_length")),
    "rollout.response_length": FieldSource((f"{SAMPLING}.max_generate_length",)),
    "rollout.n": FieldSource(("generator.n_samples_per_prompt",)),
    "algorithm.loss_weight": FieldSource(("trainer.algorithm.policy_loss_type",), read=name_loss_weight),
    "batch.train": FieldSource(("trainer.train_batch_size",)),
    "batch.mini": FieldSource(("trainer.policy_mini_batch_size",)),
    "batch.micro": FieldSource(("trainer.micro_train_batch_size_per_gpu",)),
    "trainer.remove_padding": FieldSource(("trainer.remove_microbatch_padding", "trainer.use_sample_packing")),
    "trainer.lora": FieldSource(("trainer.policy.model.lora.rank",), read=is_positive),
    "engine.routed_experts": FieldSource((f"{ENGINE}.enable_return_routed_experts",)),
    "engine.colocated": FieldSource(("trainer.placement.colocate_all",)),
    "update.transport": FieldSource(_in_engine("weight_sync_backend")),
    "update.mode": FieldSource(
        _in_engine("weight_sync_backend"), read=lambda value: "delta" if value == "delta" else "full"
    ),
    "update.directory": FieldSource((f"{ENGINE}.delta_weight_sync.sync_dir",)),
    "save.directory": FieldSource(("trainer.ckpt_path",)),
    "save.interval": FieldSource(("trainer.ckpt_interval",)),
    "critic.enabled": FieldSource((f"{ALGORITHM}.advantage_estimator",), read=lambda value: value == "gae"),
    "critic.backend": FieldSource(("trainer.strategy",), read=name_backend),
    "checkpoint.critic": FieldSource(("trainer.critic.model.path",)),
    "checkpoint.model": FieldSource(("trainer.policy.model.path",)),
}
"""Field → where SkyRL has it. The default is the one of the job's release at the first path that the release knows."""
BY_MEGATRON: dict[str, FieldSource] = {
    "trainer.tp": FieldSource((f"{MEGATRON}.tensor_model_parallel_size",)),
    "trainer.pp": FieldSource((f"{MEGATRON}.pipeline_model_parallel_size",)),
    "trainer.ep": FieldSource((f"{MEGATRON}.expert_model_parallel_size",)),
    "trainer.cp": FieldSource((f"{MEGATRON}.context_parallel_size",)),
    "trainer.attention_backend": FieldSource(
        (f"{TRANSFORMER}.attention_backend", "trainer.flash_attn"),
        read=lambda value: ("flash" if value else "fused") if isinstance(value, bool) else value,
    ),
    "trainer.router_replay": FieldSource(
        (f"{MEGATRON}.moe_enable_routing_replay",), read=lambda value: "rollout" if value is True else "none"
    ),
    "trainer.trains_draft": FieldSource(("trainer.mtp.enabled",)),
    "save.asynchronous": FieldSource((f"{MEGATRON}.async_dist_ckpt_save",)),
    "trainer.moe_permute_fusion": FieldSource((f"{TRANSFORMER}.moe_permute_fusion",)),
    "trainer.router_bias_update_rate": FieldSource((f"{TRANSFORMER}.moe_router_bias_update_rate",)),
    "trainer.attention_dropout": FieldSource((f"{TRANSFORMER}.attention_dropout",)),
    "trainer.hidden_dropout": FieldSource((f"{TRANSFORMER}.hidden_dropout",)),
}
OWN_PROGRAM = re.compile(r"\bskyrl(_train)?\.\S*entrypoints\.main_\w+")
WITHOUT_TRAINER = re.compile(r"\bentrypoints\.(serve|main_generate)\b")
"""Programs of SkyRL that start engines only."""
OF_ROLLOUT = ("rollout_is", "dppo")
"""The losses whose ratio is against the engine's logprobs."""


def _finish(job: Job, document: Document) -> None:
    """Read the job by the release that knows its keys, and set the fields that depend on several of them."""
    table = load_key_table(Path(__file__).with_name("keys.json"))
    release = table.date_job(job, (path for path in document.leaves if path.partition(".")[0] in SECTIONS))
    unknown = table.list_unknown_keys(document, release, SECTIONS, SKYRL)
    # A script of the user's may add keys to SkyRL's (``make_config``), so that only those which are almost SkyRL's are reported.
    job.unknown_keys += (
        unknown
        if OWN_PROGRAM.search(document.script) and not document.has("trainer.override_entrypoint")
        else [key for key in unknown if key.near or not key.refused_by]
    )
    default = f"{SKYRL} {table.describe(release)}"
    for name, source in PATHS.items():
        set_from_table(job, document, name, source, table, release, default)
    if job.text("trainer.backend") == "megatron":
        for name, source in BY_MEGATRON.items():
            set_from_table(job, document, name, source, table, release, default)
    else:
        job.settings["trainer.router_replay"] = Setting("none", "default", f"default of {SKYRL}: only Megatron replays")
    for name in ("trainer.dtype", "trainer.filters"):
        job.settings[name] = read_setting(job, document, name, FieldSource())
    job.settings["trainer.temperature"] = read_setting(
        job, document, "trainer.temperature", FieldSource((f"{ALGORITHM}.temperature",))
    )
    if job["trainer.temperature"].status == "unknown":
        set_derived(job, "trainer.temperature", job["rollout.temperature"].value, job["rollout.temperature"])
    count_gpus(
        job,
        document,
        ("trainer.placement.policy_num_nodes", "trainer.placement.policy_num_gpus_per_node"),
        SKYRL,
        (1, 1),
    )
    if job.text("trainer.router_replay") == "rollout":
        set_derived(job, "trainer.moe", True, job["trainer.router_replay"])
    remove_unused_critic(job)
    leave_out_unresolved(job, "save.directory", "update.directory")
    _set_correction(job, document)
    if resolve(document, f"{SAMPLING}.logprobs") is None and table.find(f"{SAMPLING}.logprobs", release):
        key = table.find(f"{SAMPLING}.logprobs", release)
        job.settings["rollout.logprobs"] = Setting(
            key is not None and key.default is not None, "default", f"default of {default}"
        )
    _set_update_and_lag(job, document)
    _read_engine(job, document)
    if WITHOUT_TRAINER.search(document.script):
        remove_settings(job, "trainer.", "algorithm.", "update.", "batch.")


def _set_correction(job: Job, document: Document) -> None:
    """Set the importance correction, and whether the engine's logprobs are asked for and enter the loss."""
    name, like = "none", Setting("none", "default", f"default of {SKYRL}")
    loss = resolve(document, f"{ALGORITHM}.policy_loss_type")
    anchor = resolve(document, f"{ALGORITHM}.cispo.cispo_anchor")
    written: list[tuple[str, ResolvedValue | None]] = [
        ("loss", loss if loss is not None and (loss.reason or loss.value in OF_ROLLOUT) else None),
        (
            "cispo",
            anchor if anchor is not None and anchor.value == "rollout" and loss and loss.value == "cispo" else None,
        ),
        ("tis", resolve(document, f"{ALGORITHM}.use_tis")),
        *(("", resolve(document, f"{CORRECTION}.{key}")) for key in ("tis_ratio_type", "sequence_mask_metric")),
        *(("mask", resolve(document, f"{CORRECTION}.{key}")) for key in MASKS),
    ]
    for kind, value in written:
        if value is None or (not value.reason and value.value in (None, False, "null", "none", "")):
            continue
        name = kind if kind in ("tis", "mask") else str(value.value)
        like = derive_setting(value, name)
        break
    job.settings["algorithm.correction"] = like
    set_derived(job, "algorithm.uses_rollout_logprobs", name != "none", like)
    _set_weights(job, document, like)
    logprobs = resolve(document, f"{SAMPLING}.logprobs")
    if name != "none" and like.is_known:
        # SkyRL asks for them by itself if a correction needs them.
        set_derived(job, "rollout.logprobs", True, like)
    elif logprobs is not None:
        job.settings["rollout.logprobs"] = derive_setting(logprobs, logprobs.value is not None)


WEIGHT_CAPS = {"token": 2.0, "sequence": 5.0}
"""tis_ratio_type → the largest weight, where the job writes none (`OffPolicyCorrectionConfig`)."""
SEQUENCE_MASKS = {"product": ("sequence", 0.5, 2.0), "geometric": ("geometric", 0.99, 1.01)}
"""sequence_mask_metric → what is left out, and the least and the largest ratio that is not."""


def _set_weights(job: Job, document: Document, like: Setting) -> None:
    """Set the importance weights of off_policy_correction."""

    def find(key: str, default: float) -> Bound:
        return find_written(document, f"{CORRECTION}.{key}") or default

    kind, metric = (find_written(document, f"{CORRECTION}.{key}") for key in ("tis_ratio_type", "sequence_mask_metric"))
    level, cap = "none", None
    if kind is not None and kind.value in WEIGHT_CAPS:
        level = str(kind.value)
        cap = find(f"{level}_tis_ratio_clip_high", WEIGHT_CAPS[level])
    mask: str = "none"
    kept: tuple[Bound, Bound] = (None, None)
    if metric is not None and metric.value in SEQUENCE_MASKS:
        mask, low, high = SEQUENCE_MASKS[str(metric.value)]
        prefix = "geo" if mask == "geometric" else "product"
        kept = find(f"{prefix}_mask_low", low), find(f"{prefix}_mask_high", high)
    if level != "none" or mask != "none" or like.value == "none":
        set_weights(job, like, SKYRL, weight=level, cut=(None, cap), mask=mask, kept=kept)
        for name, found in (("algorithm.weight", kind), ("algorithm.mask", metric)):
            if found is not None:
                job.settings[name] = derive_setting(found, job[name].value)


MASKS = (
    "outlier_token_is_threshold_low", "outlier_token_is_threshold_high", "token_mask_is_threshold_low",
    "token_mask_is_threshold_high",
)  # fmt: skip
"""Keys of off_policy_correction that leave out tokens or sequences whose ratio is far from 1."""


def _set_update_and_lag(job: Job, document: Document) -> None:
    """Set the fields of weight updates and lag."""
    default = f"default of {SKYRL}"
    enabled = resolve(document, "trainer.fully_async.enabled")
    is_async = enabled.value is True if enabled is not None else "fully_async" in document.script
    like = derive_setting(enabled, is_async) if enabled is not None else Setting(is_async, "default", default)
    set_derived(job, "update.in_flight", is_async, like)
    if like.status == "unresolved":
        return
    if not is_async:
        one_step = re.search(r"\basync\.main_async\b", document.script) is not None
        job.settings["update.clears_cache"] = Setting(True, "default", default)
        job.settings["algorithm.lag"] = Setting(
            int(one_step), "default", "default of main_async" if one_step else default
        )
        return
    job.settings["update.pause_mode"] = read_setting(job, document, "update.pause_mode", FieldSource())
    job.settings["algorithm.lag"] = read_setting(
        job, document, "algorithm.lag", FieldSource(("trainer.fully_async.max_staleness_steps",), 4, SKYRL)
    )
    clears, salt = (
        resolve(document, path)
        for path in ("trainer.fully_async.clear_kv_cache_on_weight_sync", "generator.use_cache_salt")
    )
    if clears is not None and clears.value is True:
        job.settings["update.clears_cache"] = Setting(True, "set", "", clears.leaf)
    elif salt is not None:
        job.settings["update.clears_cache"] = derive_setting(salt, salt.value is True)
    else:
        job.settings["update.clears_cache"] = Setting(True, "default", f"{default}: a cache salt")


def _read_engine(job: Job, document: Document) -> None:
    """Set the engine's arguments, and its sleep level if it shares its GPUs with the trainer."""
    local = resolve(document, f"{ENGINE}.run_engines_locally") or resolve(document, "generator.run_engines_locally")
    arguments: dict[str, ResolvedValue] = {}
    for section in (f"{ENGINE}.engine_init_kwargs", "generator.engine_init_kwargs"):
        arguments |= read_section(document, section)
    apply_engine_arguments(job, job.engine, arguments)
    _set_adapters(job, document)
    draft = resolve(document, f"{ENGINE}.speculative_config")
    mtp = resolve(document, "trainer.mtp.enabled")
    if (draft is not None and draft.value) or document.has(f"{ENGINE}.speculative_config"):
        job.settings["engine.draft"] = Setting(True, "set", "", draft.leaf if draft else None)
    elif mtp is not None and not mtp.reason:
        job.settings["engine.draft"] = Setting(mtp.value is True, "set", "", mtp.leaf)
    if local is not None and (local.value is False or local.reason):
        why = "the servers are started outside the job, with arguments of their own"
        for name in (*DEFAULTS.get(job.engine, {}), "engine.draft"):
            job.settings[name] = Setting(None, "unresolved", why, local.leaf)
        return
    if not job.flag("engine.colocated"):
        return
    # Every sync sends the heads of multi-token prediction, which are trained, and vLLM quantizes the received weights
    # anew.
    is_sent_again = (mtp is not None and mtp.value is True) or job.text("engine.quantization") not in (None, "none")
    if not is_sent_again:
        job.settings["engine.sleep_level"] = Setting(
            1 if job.flag("engine.lora") else 2, "default", f"default of {SKYRL}"
        )


def _set_adapters(job: Job, document: Document) -> None:
    """Set whether adapters are merged into the weights that are sent: Megatron does, unless merge_lora is off; FSDP never."""
    if not job.flag("trainer.lora"):
        return
    merges = resolve(document, f"{MEGATRON}.lora_config.merge_lora")
    is_megatron = job.text("trainer.backend") == "megatron"
    is_merged = is_megatron and not (merges is not None and merges.value is False)
    like = (
        derive_setting(merges, is_merged)
        if merges and is_megatron
        else Setting(is_merged, "default", f"default of {SKYRL}")
    )
    set_derived(job, "update.merges_lora", is_merged, like)
    # vLLM serves adapters exactly where they are sent (``_uses_lora_weight_sync``).
    if job["engine.lora"].status != "set":
        set_derived(job, "engine.lora", not is_merged, Setting(not is_merged, "default", f"default of {SKYRL}"))


FRAMEWORK = Framework(
    name="skyrl",
    title=SKYRL,
    style="hydra",
    sources={},
    signs=(("trainer.policy", "generator.inference_engine"), ("trainer.policy", "generator.sampling_params")),
    launches=re.compile(
        rf"{OWN_PROGRAM.pattern}|\s\+?(trainer\.policy\.model\.path|trainer\.placement\.\w+"
        r"|generator\.inference_engine\.\w+|generator\.sampling_params\.\w+)="
    ),
    finish=_finish,
    data=("data.train_data", "data.val_data"),
    ports=(("generator.http_endpoint_port", "generator.enable_http_endpoint"),),
    precedence=-1,
)
