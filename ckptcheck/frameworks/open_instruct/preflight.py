"""Reads open-instruct's GRPO jobs: ``python open_instruct/grpo_fast.py --flags``, alone or behind mason.py's ``--``.

Flags and defaults, release by release: ``keys.json``, learned from the dataclasses that grpo_fast.py and grpo.py
parse, in allenai/open-instruct up to e6c3044aa (August 2026). A job is read by the newest release that knows the most of its
flags. argparse takes the beginning of a flag's name for the flag, and ``--no_x`` for ``--x false``.

What the flags do, at e6c3044aa:

- vLLM computes in bfloat16, returns processed logprobs (since 716f27531 of May 2026; raw ones before), and holds prompt and
  response (``create_vllm_engines``). Logprobs are returned since bd26188bd of October 2025.
- The trainer divides its logits by the temperature of the rollouts, and applies no top-p.
- The ratio of the trainer's old logprobs to vLLM's corrects the loss (use_rho_correction, since e87c0fa28 of May 2026; before, with
  truncated_importance_sampling_ratio_cap), or vLLM's take the place of the old ones (use_vllm_logprobs).
- Rollouts are up to async_steps steps old. Weights change while requests run with inflight_updates: they are paused and kept. The
  prefix cache, off by default, is salted by the request (f1d722394 of August 2025), and was cleared at updates before.
- pack_length has to hold prompt and response (``StreamingDataLoaderConfig``).
"""

from __future__ import annotations

import re
from pathlib import Path

from ckptcheck.jobs.document import Document
from ckptcheck.jobs.framework import (
    Bound,
    FieldSource,
    Framework,
    derive_setting,
    expand_negations,
    find_written,
    leave_out_unresolved,
    name_loss_weight,
    normalize_dtype,
    read_setting,
    set_derived,
    set_weights,
)
from ckptcheck.jobs.interpolation import ResolvedValue, resolve
from ckptcheck.jobs.job import Job, Setting
from ckptcheck.jobs.key_names import is_read
from ckptcheck.jobs.key_table import KeyTable, load_key_table, set_from_table

TITLE = "open-instruct"

PATHS: dict[str, FieldSource] = {
    "trainer.dtype": FieldSource(("model_dtype",), read=normalize_dtype),
    "trainer.max_length": FieldSource(("pack_length",)),
    "engine.tp": FieldSource(("vllm_tensor_parallel_size",)),
    "engine.memory": FieldSource(("vllm_gpu_memory_utilization",)),
    "engine.prefix_caching": FieldSource(("vllm_enable_prefix_caching",)),
    "engine.colocated": FieldSource(("single_gpu_mode",)),
    "rollout.temperature": FieldSource(("temperature",)),
    "rollout.top_p": FieldSource(("vllm_top_p",)),
    "rollout.prompt_length": FieldSource(("max_prompt_token_length",)),
    "rollout.response_length": FieldSource(("response_length",)),
    "rollout.n": FieldSource(("num_samples_per_prompt_rollout",)),
    "algorithm.loss_weight": FieldSource(("loss_fn",), read=name_loss_weight),
    "update.in_flight": FieldSource(("inflight_updates",)),
    "algorithm.lag": FieldSource(("async_steps",)),
    "algorithm.bypass": FieldSource(("use_vllm_logprobs",)),
    "batch.train": FieldSource(("num_unique_prompts_rollout",)),
    "trainer.lora": FieldSource(("use_peft",)),
    "update.transport": FieldSource(("vllm_sync_backend",)),
    "save.directory": FieldSource(("output_dir",)),
    "save.interval": FieldSource(("save_freq",)),
    "checkpoint.model": FieldSource(("model_name_or_path",)),
}
"""Field → flag; the default is that of the job's release."""

BY_DATE = (
    "trainer.dtype", "trainer.filters", "engine.name", "engine.dtype", "engine.logprobs", "rollout.logprobs",
    "update.clears_cache",
)  # fmt: skip
"""Fields that no flag sets; ``defaults/open-instruct.toml`` has their values by version."""


def _finish(job: Job, document: Document) -> None:
    """Read the job by the release that knows its flags, and set the fields that depend on several of them."""
    table = load_key_table(Path(__file__).with_name("keys.json"))
    _normalize(document, table)
    release = table.date_job(job, document.leaves)
    job.unknown_keys += table.list_unknown_keys(document, release, frozenset(document.leaves), TITLE)
    default = f"{TITLE} {table.describe(release)}"
    for name, source in PATHS.items():
        set_from_table(job, document, name, source, table, release, default)
    if not is_read("open-instruct", "use_peft", job.defaults):
        job.settings["trainer.lora"] = Setting(False, "default", f"default of {default}")
    leave_out_unresolved(job, "save.directory", "update.directory")
    for name in BY_DATE:
        if job[name].status == "unknown":
            job.settings[name] = read_setting(job, document, name, FieldSource())
    backend = "fsdp" if re.search(r"\bgrpo\b(?!_fast)", document.script) else "deepspeed"
    job.settings["trainer.backend"] = Setting(backend, "default", f"default of {default}")
    set_derived(job, "trainer.temperature", job["rollout.temperature"].value, job["rollout.temperature"])
    if job.flag("update.in_flight"):
        set_derived(job, "update.pause_mode", "keep", job["update.in_flight"])
    learners = resolve(document, "num_learners_per_node")
    if learners is not None:
        numbers = learners.value if isinstance(learners.value, list) else [learners.value]
        if learners.reason or all(isinstance(number, int) for number in numbers):
            whole = sum(number for number in numbers if isinstance(number, int))
            job.settings["trainer.world"] = derive_setting(learners, whole)
    _set_correction(job, document, table, release, default)


def _normalize(document: Document, table: KeyTable) -> None:
    """Give each flag its full name: ``--chat_template`` is --chat_template_name, and ``--no_x`` is --x false."""
    known = table.names_below("", table.newest)
    expand_negations(document, known.__contains__)
    for path, leaf in list(document.leaves.items()):
        if not table.list_releases(path):
            meant = [name for name in known if name.startswith(path)]
            if len(meant) == 1:
                document.remove(path)
                document.put(meant[0], leaf)


def _set_weights(job: Job, document: Document, name: str, like: Setting, default: str) -> None:
    """Set the importance weights (`compute_rho_correction`): the geometric mean with rho_mask_sequence_level. 0: no bound."""

    def find(key: str, default: float) -> Bound:
        found = find_written(document, key)
        return found if found is not None and found.value != 0 else None if found is not None else default or None

    if name == "tis":
        set_weights(
            job, like, default, weight="token", cut=(None, find("truncated_importance_sampling_ratio_cap", 0.0))
        )
        return
    by_sequence = find_written(document, "rho_mask_sequence_level")
    level = "none" if name == "none" else "geometric" if by_sequence and by_sequence.value is True else "token"
    cut = find("rho_clamp_lower_bound", 0.0), find("rho_clamp_upper_bound", 2.0)
    kept = find("rho_mask_lower_bound", 0.0), find("rho_mask_upper_bound", 0.0)
    is_by_variation = find_written(document, "rho_mask_tv_divergence")
    mask = level if kept != (None, None) and not (is_by_variation and is_by_variation.value is True) else "none"
    set_weights(job, like, default, weight=level, cut=cut, mask=mask, kept=kept)


def _set_correction(job: Job, document: Document, table: KeyTable, release: int, default: str) -> None:
    """Set the importance correction, and whether vLLM's logprobs enter the loss."""
    key = (
        "use_rho_correction" if table.find("use_rho_correction", release) else "truncated_importance_sampling_ratio_cap"
    )
    known, written = table.find(key, release), resolve(document, key)
    value = written.value if written is not None else known.default if known is not None else None
    name = {"use_rho_correction": "rho"}.get(key, "tis") if value not in (None, False, 0) else "none"
    like = derive_setting(written, name) if written is not None else Setting(name, "default", f"default of {default}")
    job.settings["algorithm.correction"] = like
    _set_weights(job, document, name, like, default)
    bypass: ResolvedValue | None = resolve(document, "use_vllm_logprobs")
    if job.flag("algorithm.bypass") and bypass is not None:
        like = derive_setting(bypass, True)
    set_derived(job, "algorithm.uses_rollout_logprobs", name != "none" or bool(job.flag("algorithm.bypass")), like)


FRAMEWORK = Framework(
    name="open-instruct",
    title=TITLE,
    style="flags",
    sources={},
    launches=re.compile(r"\bopen_instruct/grpo(_fast)?\.py\b|-m\s+open_instruct\.grpo(_fast)?\b"),
    config_options=("--config",),  # it has no such option, and takes a YAML file before its flags
    program=re.compile(r"((?<!\S)\S*/)?open_instruct(/|\.)grpo(_fast)?(\.py)?$"),
    finish=_finish,
)
