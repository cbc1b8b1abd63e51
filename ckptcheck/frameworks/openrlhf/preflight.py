"""Reads launch lines of OpenRLHF: ``python -m openrlhf.cli.train_ppo_ray --flags``, flat (until 0.10.1) or dotted (since 0.10.2).

Facts, from OpenRLHF/OpenRLHF (3c3be6234, the releases named) and the package 0.11.2, ``openrlhf/cli/train_ppo_ray.py``
and ``openrlhf/trainer/ray`` if no other file is named:

- vLLM computes in bfloat16 whatever the trainer does (``vllm_engine.py``), and its weights must have that dtype.
- vLLM's logprobs are asked for only where the importance correction is on (since 0.8.9), and then they are processed ones.
- The trainer divides its logits by the temperature since 0.6.2 (``models/actor.py``), and computes over the whole vocabulary.
- The context of vLLM is ``max_len``. Before 0.9.8 it was the sum of the two lengths where ``max_len`` was not written.
- Each step sends all weights and, where prefix caching is on, clears its cache. With partial rollouts requests are paused and
  keep their blocks, and vLLM clears no cache that is in use (``BlockPool.reset_prefix_cache``); nothing reads its answer.
- Asynchronous training holds ``async_queue_size`` batches back (``trainer/ppo_trainer_async.py``).
- ``broadcast_to_vllm`` sends the parameters of an adapter under their own names, and vLLM serves no adapter.

Flags and defaults of each release are in ``keys.json``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ckptcheck.jobs.document import Document
from ckptcheck.jobs.framework import (
    Bound,
    FieldSource,
    Framework,
    count_gpus,
    derive_setting,
    find_written,
    is_positive,
    is_switched_on,
    normalize_dtype,
    read_setting,
    remove_unused_critic,
    set_default,
    set_derived,
    set_weights,
)
from ckptcheck.jobs.job import Job, Setting
from ckptcheck.jobs.key_table import load_key_table, set_from_table

OPENRLHF = "OpenRLHF"
ADVANTAGE = "algo.advantage"


DATED = (
    "trainer.backend", "trainer.filters", "engine.name", "engine.dtype", "engine.quantization", "engine.lora", "rollout.top_k",
    "update.mode", "update.merges_lora",
)  # fmt: skip
"""Fields that no flag sets; ``defaults/openrlhf.toml`` has their values."""
PATHS: Mapping[str, FieldSource] = {
    "trainer.dtype": FieldSource(("ds.param_dtype", "param_dtype"), read=normalize_dtype),
    "trainer.tp": FieldSource(("ds.tensor_parallel_size", "ds_tensor_parallel_size")),
    "trainer.cp": FieldSource(("ds.ring_attn_size", "ring_attn_size")),
    "trainer.lora": FieldSource(("ds.lora.rank", "lora_rank"), read=is_positive),
    "engine.tp": FieldSource(("vllm.tensor_parallel_size", "vllm_tensor_parallel_size")),
    "engine.prefix_caching": FieldSource(("vllm.enable_prefix_caching", "enable_prefix_caching")),
    "engine.max_model_len": FieldSource(("data.max_len", "max_len")),
    "engine.memory": FieldSource(("vllm.gpu_memory_utilization", "vllm_gpu_memory_utilization")),
    "update.transport": FieldSource(("vllm.sync_backend", "vllm_sync_backend")),
    "rollout.temperature": FieldSource(("rollout.temperature", "temperature")),
    "rollout.top_p": FieldSource(("rollout.top_p", "top_p")),
    "rollout.prompt_length": FieldSource(("prompt_max_len",)),
    "rollout.response_length": FieldSource(("rollout.max_new_tokens", "max_new_tokens", "generate_max_len")),
    "rollout.n": FieldSource(("rollout.n_samples_per_prompt", "n_samples_per_prompt")),
    "batch.train": FieldSource(("rollout.batch_size", "rollout_batch_size")),
    "batch.micro": FieldSource(("train.micro_batch_size", "micro_train_batch_size")),
    "batch.dynamic": FieldSource(("train.dynamic_batch_enable", "use_dynamic_batch")),
    "critic.enabled": FieldSource((f"{ADVANTAGE}.estimator", "advantage_estimator"), read=lambda value: value == "gae"),
    "checkpoint.model": FieldSource(("actor.model_name_or_path", "pretrain")),
    "checkpoint.critic": FieldSource(("critic.model_name_or_path", "critic_pretrain")),
}  # fmt: skip


def _finish(job: Job, document: Document) -> None:
    """Read the job by its release, and set the fields that depend on several keys."""
    table = load_key_table(Path(__file__).with_name("keys.json"))
    number, _ = table.pick_release(job, document)
    of = f"{OPENRLHF} {table.describe(number).removeprefix('v')}"
    sections = {path.partition(".")[0] for path in document.leaves}
    job.unknown_keys += table.list_unknown_keys(document, number, sections)
    for name, source in PATHS.items():
        set_from_table(job, document, name, source, table, number, of)
    for name in DATED:
        job.settings[name] = read_setting(job, document, name, FieldSource())
    if is_switched_on(document, "bf16"):
        found = find_written(document, "bf16")
        job.settings["trainer.dtype"] = derive_setting(found, "bfloat16") if found else Setting()
    # Releases before 0.6.2 computed at temperature 1.
    if job.defaults is None or (job.defaults.version.release or (1,)) >= (0, 6, 2):
        set_derived(job, "trainer.temperature", job["rollout.temperature"].value, job["rollout.temperature"])
    else:
        set_default(job, "trainer.temperature", 1.0, of)
    paths = ("actor.num_nodes", "actor.num_gpus_per_node")
    if not document.has(paths[0]) and not document.has(paths[1]):
        paths = ("actor_num_nodes", "actor_num_gpus_per_node")
    count_gpus(job, document, paths, of)
    if job.flag("critic.enabled"):
        set_default(job, "critic.backend", "deepspeed", OPENRLHF)
    remove_unused_critic(job)
    _set_engine_and_update(job, document, of)
    _set_correction(job, document, of)


def _set_engine_and_update(job: Job, document: Document, of: str) -> None:
    """Set vLLM's fields, the path of weights to it, and the age of rollouts."""
    asynchronous = find_written(document, "train.async_enable", "async_train")
    is_asynchronous = is_switched_on(document, "train.async_enable", "async_train")
    partial = find_written(document, "train.partial_rollout_enable", "partial_rollout")
    is_partial = is_switched_on(document, "train.partial_rollout_enable", "partial_rollout")
    is_colocated = is_switched_on(document, "train.colocate_all", "colocate_all_models")
    set_default(job, "engine.colocated", is_colocated and not is_asynchronous, of)
    sleep = find_written(document, "vllm.enable_sleep", "vllm_enable_sleep")
    if sleep is not None and is_switched_on(document, "vllm.enable_sleep", "vllm_enable_sleep"):
        job.settings["engine.sleep_level"] = derive_setting(sleep, 1)
    if is_partial and partial is not None:
        for name, value in (("update.in_flight", True), ("update.pause_mode", "keep"), ("update.clears_cache", False)):
            job.settings[name] = derive_setting(partial, value)
    else:
        set_default(job, "update.in_flight", False, OPENRLHF)
        set_default(job, "update.clears_cache", True, OPENRLHF)
    queue = find_written(document, "train.async_queue_size", "async_queue_size")
    if is_asynchronous and asynchronous is not None:
        job.settings["algorithm.lag"] = derive_setting(queue, queue.value) if queue else derive_setting(asynchronous, 1)
    else:
        set_default(job, "algorithm.lag", 0, OPENRLHF)


def _set_correction(job: Job, document: Document, of: str) -> None:
    """Set the importance correction between vLLM and the trainer. Without it OpenRLHF asks for no logprobs."""
    level = find_written(document, f"{ADVANTAGE}.is_correction_level")
    switch = find_written(document, f"{ADVANTAGE}.is_correction_enable", "enable_vllm_is_correction")
    kind = find_written(
        document, f"{ADVANTAGE}.is_correction_mode", f"{ADVANTAGE}.is_correction_type", "vllm_is_correction_type"
    )
    if level is not None:
        name = "none" if level.value in ("off", False) else f"{level.value} {kind.value if kind else 'mask'}"
        like = derive_setting(level, name)
    elif switch is not None and is_switched_on(
        document, f"{ADVANTAGE}.is_correction_enable", "enable_vllm_is_correction"
    ):
        name = str(kind.value) if kind else "tis"
        like = derive_setting(switch, name)
    else:
        name, like = "none", Setting("none", "default", f"default of {of}")
    job.settings["algorithm.correction"] = like
    set_derived(job, "algorithm.uses_rollout_logprobs", name != "none", like)
    set_derived(job, "rollout.logprobs", name != "none", like)
    if level is None or name == "none":
        _set_weights(job, document, name, like, of)
    if name != "none":
        set_default(job, "engine.logprobs", "processed", f"{OPENRLHF} with the correction")


def _set_weights(job: Job, document: Document, name: str, like: Setting, of: str) -> None:
    """Set the importance weights (`PolicyLoss`), which are those of tokens. name: how they are bounded, or none."""
    written = find_written(document, f"{ADVANTAGE}.is_correction_threshold", "vllm_is_truncated_threshold")
    bounds: tuple[Bound, Bound] = (0.5, 5.0) if written is None else (None, None)
    if written is not None and isinstance(written.value, list) and len(written.value) == 2:
        bounds = replace(written, value=written.value[0]), replace(written, value=written.value[1])
    if name in ("icepop", "seq-mask-tis"):
        set_weights(job, like, of, weight="token", mask="token" if name == "icepop" else "geometric", kept=bounds)
    else:
        set_weights(job, like, of, weight="none" if name == "none" else "token", cut=bounds)


FRAMEWORK = Framework(
    name="openrlhf",
    title=OPENRLHF,
    style="flags",
    sources={},
    launches=re.compile(r"\bopenrlhf[./]cli[./]train_ppo(_ray)?\b"),
    finish=_finish,
    data=("data.prompt_dataset", "eval.dataset", "prompt_data", "eval_dataset"),
)
