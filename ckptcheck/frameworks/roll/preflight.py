"""Reads ROLL's configurations: YAML with Hydra, started with ``--config_path`` and ``--config_name``.

Names and defaults: examples of alibaba/ROLL at 8eb27cc2, ``roll/configs/generating_args.py`` and
``roll/distributed/strategy/vllm_strategy.py``. Its trainer computes logprobs at temperature 1
over the whole vocabulary, and no configuration changes that.
"""

from __future__ import annotations

import re

from ckptcheck.jobs.document import Document
from ckptcheck.jobs.engine_flags import apply_engine_arguments
from ckptcheck.jobs.framework import (
    FieldSource,
    Framework,
    derive_setting,
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
)
from ckptcheck.jobs.interpolation import resolve
from ckptcheck.jobs.job import Job, Setting

TRAIN, INFER = "actor_train", "actor_infer"
STRATEGY, ENGINE = f"{TRAIN}.strategy_args.strategy_config", f"{INFER}.strategy_args.strategy_config"
CRITIC, CRITIC_STRATEGY = "critic", "critic.strategy_args.strategy_config"
GENERATING = f"{INFER}.generating_args"
ROLL = "ROLL"
OWN_ARGUMENTS = frozenset(("engine_mode", "pending_size", "sleep_level", "resource_placement_groups"))
"""Keys beside the engine's arguments that ROLL handles itself."""


def _lag(value: object) -> object:
    return value if isinstance(value, (int, float)) else None


def _correction(value: object) -> object:
    return "is_weight" if value is True else "none"


SOURCES = {
    "trainer.backend": FieldSource((f"{TRAIN}.strategy_args.strategy_name",), read=name_backend),
    "trainer.dtype": FieldSource((f"{TRAIN}.model_args.dtype",), read=normalize_dtype),
    "trainer.tp": FieldSource((f"{STRATEGY}.tensor_model_parallel_size",)),
    "trainer.pp": FieldSource((f"{STRATEGY}.pipeline_model_parallel_size",)),
    "trainer.ep": FieldSource((f"{STRATEGY}.expert_model_parallel_size",)),
    "trainer.cp": FieldSource((f"{STRATEGY}.context_parallel_size",)),
    "trainer.temperature": FieldSource(),
    "trainer.filters": FieldSource(),
    "trainer.plain_logprobs": FieldSource(),
    "trainer.attention_backend": FieldSource((f"{STRATEGY}.attention_backend",)),
    "trainer.moe_permute_fusion": FieldSource((f"{STRATEGY}.moe_permute_fusion",)),
    "trainer.router_bias": FieldSource((f"{STRATEGY}.moe_router_enable_expert_bias",)),
    "trainer.router_bias_update_rate": FieldSource((f"{STRATEGY}.moe_router_bias_update_rate",)),
    "trainer.max_length": FieldSource(("sequence_length",)),
    "engine.name": FieldSource((f"{INFER}.strategy_args.strategy_name",)),
    "engine.dtype": FieldSource((f"{INFER}.model_args.dtype",), read=normalize_dtype),
    "engine.sleep_level": FieldSource((f"{ENGINE}.sleep_level",)),
    "rollout.temperature": FieldSource((f"{GENERATING}.temperature",)),
    "rollout.top_p": FieldSource((f"{GENERATING}.top_p",)),
    "rollout.top_k": FieldSource((f"{GENERATING}.top_k",)),
    "rollout.repetition_penalty": FieldSource((f"{GENERATING}.repetition_penalty",)),
    "rollout.prompt_length": FieldSource(("prompt_length",)),
    "rollout.response_length": FieldSource((f"{GENERATING}.max_new_tokens", "response_length")),
    "rollout.n": FieldSource(("num_return_sequences_in_group", f"{GENERATING}.num_return_sequences")),
    "algorithm.loss_weight": FieldSource(("pg_variant",), read=name_loss_weight),
    "algorithm.correction": FieldSource(("train_infer_correction.is_weight.enabled",), read=_correction),
    "algorithm.lag": FieldSource(("async_generation_ratio",), read=_lag),
    "batch.train": FieldSource(("rollout_batch_size",)),
    "trainer.vpp": FieldSource((f"{STRATEGY}.virtual_pipeline_model_parallel_size",)),
    "critic.enabled": FieldSource(("adv_estimator",), read=lambda value: value == "gae"),
    "critic.backend": FieldSource((f"{CRITIC}.strategy_args.strategy_name",), read=name_backend),
    "critic.tp": FieldSource((f"{CRITIC_STRATEGY}.tensor_model_parallel_size",)),
    "critic.pp": FieldSource((f"{CRITIC_STRATEGY}.pipeline_model_parallel_size",)),
    "critic.vpp": FieldSource((f"{CRITIC_STRATEGY}.virtual_pipeline_model_parallel_size",)),
    "critic.ep": FieldSource((f"{CRITIC_STRATEGY}.expert_model_parallel_size",)),
    "critic.cp": FieldSource((f"{CRITIC_STRATEGY}.context_parallel_size",)),
    "critic.num_labels": FieldSource((f"{CRITIC}.model_args.num_labels",)),
    "critic.model_type": FieldSource((f"{CRITIC}.model_args.model_type",)),
    "checkpoint.critic": FieldSource((f"{CRITIC}.model_args.model_name_or_path", "reward_pretrain")),
    "checkpoint.model": FieldSource((f"{INFER}.model_args.model_name_or_path", "pretrain")),
    "checkpoint.trainer": FieldSource((f"{TRAIN}.model_args.model_name_or_path",)),
    "trainer.router_replay": FieldSource((f"{TRAIN}.router_replay.mode",), "none", ROLL, name_router_replay),
    "trainer.lora": FieldSource((f"{TRAIN}.model_args.lora_target",), False, ROLL, bool),
    "update.merges_lora": FieldSource((), False, ROLL),
    "engine.load_format": FieldSource((), "dummy", ROLL),
    "save.interval": FieldSource(("save_steps",)),
    "save.directory": FieldSource(("checkpoint_config.output_dir", "output_dir")),
}
DEVICES = re.compile(r"list\(range\((\d+),\s*(\d+)\)\)")
"""ROLL's notation for a range of GPUs: ``list(range(0, 8))``."""
MOST_GPUS = 100_000


def _finish(job: Job, document: Document) -> None:
    """Set the engine's arguments and the fields that depend on several keys."""
    if job.engine in ("vllm", "sglang"):
        apply_engine_arguments(job, job.engine, read_section(document, ENGINE), beside=OWN_ARGUMENTS)
        if job.engine == "vllm":
            set_default(job, "engine.prefix_caching", True, ROLL)
    if job.engine == "sglang":
        # vLLM's strategy ignores the setting (``worker_config.py``).
        job.settings["engine.routed_experts"] = read_setting(
            job,
            document,
            "engine.routed_experts",
            FieldSource((f"{INFER}.router_replay.mode",), False, ROLL, lambda value: value != "disable"),
        )
    elif job.engine == "vllm":
        set_default(job, "engine.routed_experts", False, ROLL)
    job.settings["engine.lora"] = read_setting(
        job, document, "engine.lora", FieldSource((f"{INFER}.model_args.lora_target",), False, ROLL, bool)
    )
    if job["trainer.max_length"].status == "set" and job["rollout.prompt_length"].status == "default":
        # An agent's turns end at sequence_length, whatever the default of prompt_length.
        del job.settings["rollout.prompt_length"]
    prompt, response = job.number("rollout.prompt_length"), resolve(document, "response_length")
    if (
        job["trainer.max_length"].status == "unknown"
        and prompt
        and response is not None
        and isinstance(response.value, int)
    ):
        job.settings["trainer.max_length"] = Setting(prompt + response.value, "set", "", response.leaf)
    for side, worker in (("trainer", TRAIN), ("critic", CRITIC), ("engine", INFER)):
        devices = resolve(document, f"{worker}.device_mapping")
        if devices is not None and (match := DEVICES.fullmatch(str(devices.value))):
            number = max(0, int(match[2][:9]) - int(match[1][:9]))
            job.settings[f"{side}.world"] = Setting(number, "set", "", devices.leaf)
        if side != "engine":
            set_uneven_stages(job, document, side, f"{worker}.strategy_args.strategy_config")
    if not document.has(CRITIC):
        job.settings["critic.enabled"] = Setting(False, "set")
    remove_unused_critic(job)
    _set_shares(job, document)
    if not document.has(INFER) and not job.is_incomplete:
        # Supervised training, DPO and distillation from a file sample nothing.
        remove_settings(job, "engine.", "rollout.", "algorithm.", "update.")
        return
    uses = job.text("algorithm.correction") != "none"
    set_derived(job, "algorithm.uses_rollout_logprobs", uses, job["algorithm.correction"])
    kind, bound = (
        resolve(document, f"train_infer_correction.is_weight.{key}") for key in ("weight_type", "upper_bound")
    )
    level = str(kind.value) if kind is not None else "token"
    # The weight of a segment, a stretch of trained tokens, is the mean over it: in one turn over the whole response.
    if not uses:
        set_weights(job, job["algorithm.correction"], ROLL)
    elif level in ("token", "sequence", "geometric"):
        set_weights(job, job["algorithm.correction"], ROLL, weight=level, cut=(0.0, bound or 1.2))
        if kind is not None:
            job.settings["algorithm.weight"] = derive_setting(kind, level)


def _read_devices(document: Document, worker: str) -> frozenset[int]:
    """Return the GPUs of a cluster of workers; none where they are not written as a range."""
    devices = resolve(document, f"{worker}.device_mapping")
    match = DEVICES.fullmatch(str(devices.value)) if devices is not None else None
    return (
        frozenset(range(int(match[1][:9]), min(int(match[2][:9]), int(match[1][:9]) + MOST_GPUS)))
        if match
        else frozenset()
    )


def _set_shares(job: Job, document: Document) -> None:
    """Set the share of a GPU that the engines of the policy and of a reward model take together.

    Both leave it between their steps only where the policy's engine shares GPUs with what trains (``vllm_strategy.py:372``).
    """
    infer = _read_devices(document, INFER)
    if job.engine != "vllm" or any(_read_devices(document, worker) & infer for worker in (TRAIN, "reference", CRITIC)):
        return
    for name in document.keys_of("rewards"):
        worker = f"rewards.{name}"
        kind = resolve(document, f"{worker}.strategy_args.strategy_name")
        if kind is None or kind.value != "vllm":
            continue
        found = [
            resolve(document, f"{each}.strategy_args.strategy_config.gpu_memory_utilization")
            for each in (INFER, worker)
        ]
        shares = [0.9 if each is None else each.value for each in found]
        leaf = next((each.leaf for each in reversed(found) if each is not None), kind.leaf)
        numbers = [share for share in shares if isinstance(share, (int, float))]
        if _read_devices(document, worker) & infer and len(numbers) == len(shares) and round(sum(numbers), 6) > 1:
            job.settings["gpu.shares"] = Setting(round(sum(numbers), 6), "set", "", leaf)


FRAMEWORK = Framework(
    name="roll",
    title=ROLL,
    style="hydra",
    sources=SOURCES,
    signs=(("actor_train", "actor_infer"),),
    launches=re.compile(r"\bstart_\w*pipeline\.py\b"),
    finish=_finish,
    drops_unknown=True,  # dacite's from_dict, which is not strict (examples/start_rlvr_pipeline.py:27)
    data=("actor_train.data_args.file_name", "validation.data_args.file_name"),
)
