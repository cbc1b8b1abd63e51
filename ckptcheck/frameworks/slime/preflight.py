"""Reads launch scripts of slime and miles: a shell script whose arrays of ``--flags`` go to train.py or train_async.py.

Flags are slime's own, Megatron's, and SGLang's with ``--sglang-`` before them. Names and defaults:
``slime/utils/arguments.py`` of THUDM/slime, Megatron's arguments. slime divides its own logits by the rollout's
temperature (vllm-project/vime#64), and pauses and flushes SGLang at every update.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ckptcheck.frameworks.slime.flags import OWN, PREFIXES, find_meant_flag, list_known_flags, load_megatron_flags
from ckptcheck.jobs.document import Document
from ckptcheck.jobs.engine_flags import apply_engine_arguments
from ckptcheck.jobs.framework import (
    FieldSource,
    Framework,
    count_gpus,
    environment_flag,
    name_loss_weight,
    remove_settings,
    set_default,
    set_derived,
    set_weights,
)
from ckptcheck.jobs.interpolation import ResolvedValue, resolve
from ckptcheck.jobs.job import Job, NamedCheckpoint, Setting, UnknownKey
from ckptcheck.text.file_io import real_path

SLIME, MEGATRON = "slime", "Megatron"


def _dtype_of_fp16(value: object) -> object:
    return "float16" if value is True else "bfloat16"


def _is_delta(value: object) -> object:
    return "delta" if value in ("delta", "disk-delta") else "full"


def _is_set(value: object) -> object:
    return value not in (None, 0, False, "none")


SOURCES = {
    "trainer.backend": FieldSource(("train_backend",)),
    "trainer.dtype": FieldSource(("fp16",), read=_dtype_of_fp16),
    "trainer.tp": FieldSource(("tensor_model_parallel_size",)),
    "trainer.pp": FieldSource(("pipeline_model_parallel_size",)),
    "trainer.ep": FieldSource(("expert_model_parallel_size",)),
    "trainer.cp": FieldSource(("context_parallel_size",)),
    "trainer.temperature": FieldSource(("rollout_temperature",)),
    "trainer.filters": FieldSource(),
    "trainer.attention_backend": FieldSource(("attention_backend",)),
    "trainer.moe": FieldSource(("num_experts",), read=_is_set),
    "trainer.mla": FieldSource(("multi_latent_attention",)),
    "trainer.moe_permute_fusion": FieldSource(("moe_permute_fusion",)),
    "trainer.deepep": FieldSource(("moe_enable_deepep",)),
    "trainer.router_bias": FieldSource(("moe_router_enable_expert_bias",)),
    "trainer.router_bias_update_rate": FieldSource(("moe_router_bias_update_rate",)),
    "trainer.fp8": FieldSource(("fp8_format",), read=_is_set),
    "trainer.attention_dropout": FieldSource(("attention_dropout",)),
    "trainer.hidden_dropout": FieldSource(("hidden_dropout",)),
    "engine.name": FieldSource(),
    "engine.tp": FieldSource(("rollout_num_gpus_per_engine",)),
    "engine.max_model_len": FieldSource(("rollout_max_context_len",)),
    "rollout.temperature": FieldSource(("rollout_temperature",)),
    "rollout.top_p": FieldSource(("rollout_top_p",)),
    "rollout.top_k": FieldSource(("rollout_top_k",)),
    "rollout.n": FieldSource(("n_samples_per_prompt",)),
    "algorithm.loss_weight": FieldSource(("advantage_estimator",), read=name_loss_weight),
    "rollout.prompt_length": FieldSource(("rollout_max_prompt_len",)),
    "rollout.response_length": FieldSource(("rollout_max_response_len",)),
    "rollout.logprobs": FieldSource(),
    "algorithm.correction": FieldSource(("use_tis",), read=lambda value: "tis" if value is True else "none"),
    "update.pause_mode": FieldSource(("pause_generation_mode",)),
    "batch.train": FieldSource(("rollout_batch_size",)),
    "batch.balance": FieldSource(("balance_data",)),
    "batch.steps_per_rollout": FieldSource(("num_steps_per_rollout",)),
    "batch.responses": FieldSource(("global_batch_size",)),
    "debug.rollout_only": FieldSource(("debug_rollout_only",)),
    "debug.train_only": FieldSource(("debug_train_only",)),
    "debug.save_rollouts": FieldSource(("save_debug_rollout_data",)),
    "debug.load_rollouts": FieldSource(("load_debug_rollout_data",)),
    "debug.save_train": FieldSource(("save_debug_train_data",)),
    "checkpoint.model": FieldSource(("hf_checkpoint",)),
    "checkpoint.trainer": FieldSource(("load", "ref_load")),
    "trainer.deterministic": FieldSource(("deterministic_mode",), False, MEGATRON),
    "trainer.lora": FieldSource(("lora_rank",), False, SLIME, _is_set),
    "trainer.trains_draft": FieldSource(("enable_mtp_training",), False, SLIME),
    "trainer.chat_template": FieldSource(("chat_template_path",)),
    "engine.colocated": FieldSource(("colocate",), False, SLIME),
    "update.mode": FieldSource(("update_weight_mode", "update_weight_transfer_mode"), "full", SLIME, _is_delta),
    "update.transport": FieldSource(("update_weight_transport", "update_weight_transfer_mode"), "nccl", SLIME),
    "update.base": FieldSource(("update_weight_local_checkpoint_dir",)),
    "update.directory": FieldSource(("update_weight_disk_dir",)),
    "save.asynchronous": FieldSource(("async_save",), False, MEGATRON),
    "save.keeps_cuda_handles": FieldSource(("use_persistent_ckpt_worker",), False, MEGATRON),
    "save.interval": FieldSource(("save_interval",)),
    "save.directory": FieldSource(("save",)),
}
OWN_PROGRAM = re.compile(r"(^|[\s/])train(_async|_multi_lora_async)?\.py\b")
ADDS_FLAGS = ("rollout_function_path", "custom_generate_function_path")
"""Name functions of the user's that may have an ``add_arguments``, which miles calls with its parser."""
MILES = re.compile(r"\bmiles(_plugins)?\b", re.IGNORECASE)
IN_MODEL_SCRIPT = (
    "trainer.moe", "trainer.mla", "trainer.moe_permute_fusion", "trainer.attention_backend", "trainer.attention_dropout",
    "trainer.hidden_dropout",
)  # fmt: skip
"""Fields that slime's scripts/models/*.sh set: they stay unknown if a script sources such a file and it is missing."""
MODEL_ARGUMENTS = (
    "trainer.mla", "trainer.moe_permute_fusion", "trainer.router_bias", "trainer.router_bias_update_rate",
)  # fmt: skip
"""Fields that the model's own arguments set beside --num-experts."""


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
    # slime's parser drops a flag that it does not know; that of miles stops.
    stops, drops = ("", SLIME) if job.framework == SLIME else (job.framework, "")
    date = load_megatron_flags().date
    for name, leaf in document.leaves.items():
        # argparse knows each flag in one spelling, with dashes
        is_other_spelling = name in OWN and leaf.key.startswith("--") and "_" in leaf.key
        meant = name if is_other_spelling else find_meant_flag(name)
        if not name.startswith(PREFIXES) and meant:
            near = f"--{meant.replace('_', '-')}"
            job.unknown_keys.append(UnknownKey(leaf, near=near, dropped_by=drops, refused_by=stops))
        elif _is_unknown(job, document, name):
            end = "drops it without a word" if drops else "stops at it"
            why = f"neither {job.framework} nor Megatron to {date} has it, and {job.framework} {end}"
            job.unknown_keys.append(UnknownKey(leaf, why, dropped_by=drops, refused_by=stops))
    job.keys_left = f"with the names of the flags of {job.framework} and Megatron to {date}"
    raw = environment_flag(document, "SGLANG_RETURN_ORIGINAL_LOGPROB")
    if raw.is_known and raw.value is True:
        set_derived(job, "engine.logprobs", "raw", raw)
    _set_router_replay(job, document)
    # slime starts SGLang from the same checkpoint as its tokenizer; a model of the user's may compute its own head.
    if not any(document.has(key) for key in ("custom_model_provider_path", "spec")):
        set_default(job, "trainer.fp32_head", False, MEGATRON)
    adapters_serve = job.flag("trainer.lora") and resolve(document, "lora_train_only") is None
    if job.flag("trainer.lora") is not None:
        if job["engine.lora"].status == "unknown":
            set_derived(
                job, "engine.lora", bool(adapters_serve), _of(document, "lora_train_only") or job["trainer.lora"]
            )
        set_default(job, "update.merges_lora", False, SLIME)
    if job.text("trainer.backend") != "megatron":
        for name in [name for name, setting in job.settings.items() if setting.source == f"default of {MEGATRON}"]:
            del job.settings[name]
    _set_model(job, document)
    if document.notes:
        _remove_defaults(job, IN_MODEL_SCRIPT)
    if job["trainer.moe"].status != "set" and (job.number("trainer.ep") or 1) > 1:
        set_derived(job, "trainer.moe", True, job["trainer.ep"])
        # Experts without --num-experts: what the model's own arguments set was not read.
        _remove_defaults(job, MODEL_ARGUMENTS)
    # An unreadable file may set the missing flags.
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
        remove_settings(job, "engine.", "rollout.", "algorithm.", "update.")
        return
    if job.flag("debug.rollout_only"):
        remove_settings(job, "trainer.", "algorithm.", "update.")
        return
    # slime replays the nucleus of top-p; without top-p the engine sends none.
    if job.flag("trainer.filters") and (job.number("rollout.top_k") or 0) > 0 and job.number("rollout.top_p") == 1:
        set_derived(job, "trainer.filters", False, job["trainer.filters"])
    _set_update_and_lag(job, document)
    count_gpus(job, document, ("actor_num_nodes", "actor_num_gpus_per_node"), SLIME)
    own = _of(document, "rollout_num_gpus")
    if own is not None and not any(document.has(key) for key in ("sglang_config", "rollout_external_engine_addrs")):
        job.settings["engine.world"] = own
    elif own is None and job.flag("engine.colocated") and not document.has("sglang_config"):
        set_derived(job, "engine.world", job["trainer.world"].value, job["trainer.world"])
    _set_weights(job, document)
    use_logprobs = resolve(document, "use_rollout_logprobs")
    uses = job.text("algorithm.correction") == "tis" or bool(use_logprobs and use_logprobs.value is True)
    set_derived(
        job,
        "algorithm.uses_rollout_logprobs",
        uses,
        Setting(uses, "set", "", use_logprobs.leaf) if use_logprobs else job["algorithm.correction"],
    )


def _is_unknown(job: Job, document: Document, name: str) -> bool:
    """Return whether neither the own program of slime or miles nor a function that the job names can add a flag."""
    return (
        OWN_PROGRAM.search(document.script) is not None
        and job.text("trainer.backend") == "megatron"
        and (job.framework == SLIME or not any(document.has(key) for key in ADDS_FLAGS))
        and not name.startswith(PREFIXES)
        and not {name, name.removeprefix("no_")} & list_known_flags()
    )


def _set_model(job: Job, document: Document) -> None:
    """Set the model that Megatron builds from the job's own flags (slime's scripts/models)."""
    from ckptcheck.compare.bridge.model_dimensions import ModelDimensions

    heads = _of(document, "num_attention_heads")
    if heads is None:
        return
    found = {name: resolve(document, name) for name in ("num_attention_heads", "num_query_groups", "num_experts")}
    values = {name: each.value for name, each in found.items() if each is not None}
    job.model_of_flags = NamedCheckpoint(
        f"its flags ({heads.place})", dimensions=ModelDimensions.from_megatron_args(values)
    )


def _remove_defaults(job: Job, names: Sequence[str]) -> None:
    """Remove the defaults of fields that a file which was not read may set."""
    job.settings = {k: each for k, each in job.settings.items() if k not in names or each.status != "default"}


def _set_weights(job: Job, document: Document) -> None:
    """Set the importance weights: `vanilla_tis_function` cuts those of tokens, `icepop_function` leaves tokens out."""
    like, function = job["algorithm.correction"], resolve(document, "custom_tis_function_path")
    bounds = (resolve(document, "tis_clip_low") or 0.0, resolve(document, "tis_clip") or 2.0)
    if job.text("algorithm.correction") != "tis":
        set_weights(job, like, SLIME)
    elif function is None:
        set_weights(job, like, SLIME, weight="token", cut=bounds)
    elif str(function.value).endswith(".icepop_function"):
        set_weights(job, like, SLIME, weight="token", mask="token", kept=bounds)


def _of(document: Document, key: str) -> Setting | None:
    """Return a setting with the place of its key; None if the job does not write the key."""
    found = resolve(document, key)
    return Setting(found.value, "set", "", found.leaf) if found is not None else None


def _set_router_replay(job: Job, document: Document) -> None:
    """Set router replay: one flag turns it on in SGLang and in the trainer (``slime_validate_args``)."""
    rollout, own = _of(document, "use_rollout_routing_replay"), _of(document, "use_routing_replay")
    if rollout is not None:
        set_derived(job, "trainer.router_replay", "rollout", rollout)
        set_derived(job, "engine.routed_experts", True, rollout)
    elif own is not None:
        set_derived(job, "trainer.router_replay", "recompute", own)
    elif not document.notes:
        set_default(job, "trainer.router_replay", "none", SLIME)


def _fork(document: Document, folder: Path) -> str:
    """Return miles if the job names it or lies in its checkout. folder: the job's."""
    texts = (
        document.folder,
        *document.launch,
        *(str(leaf.value) for leaf in document.leaves.values()),
        *(str(leaf.value) for leaf in document.environment.values()),
    )
    if any(MILES.search(text) for text in texts):
        return "miles"
    for place in [folder, *real_path(folder).parents][:8]:
        if (place / "slime").is_dir():
            return ""
        if (place / "miles" / "utils").is_dir():
            return "miles"
    return ""


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
        # From the beginning only, so that the time does not grow with the square of a command's length.
        r"\A(?=.*?\s--(hf-checkpoint|rollout-|sglang-|actor-num|advantage-estimator)).*?\btrain(_\w+)?\.py\b",
        re.DOTALL,
    ),
    finish=_finish,
    fork=_fork,
    data=("prompt_data", "eval_prompt_data"),
    ports=(
        ("sglang_router_port", "!sglang_router_ip"),
        ("session_server_port", "!session_server_ip"),
        ("prometheus_port", ""),
        ("control_server_port", ""),
        ("multi_lora_api_port", ""),
    ),
)
