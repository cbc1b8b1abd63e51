"""Reads jobs of TRL: ``trl grpo --config FILE``, launch lines of its scripts with ``--flags``, and their YAML files.

Facts, from huggingface/trl (f2cd57710 and the releases named) and the package 1.16.0; without another file named, from
``trl/trainer/grpo_trainer.py`` and ``trl/generation/vllm_generation.py``:

- The trainer divides its logits by the temperature since 0.16, and computes over the whole vocabulary: no top-p, no top-k.
- vLLM's logprobs are asked for since 0.23, where the importance correction is on. They are processed ones since 0.24 with a
  colocated engine and since 0.27.1 with ``trl vllm-serve``; since 1.11 that only starts ``vllm serve`` with the right options
  (``trl/scripts/vllm_serve.py``), and a server that the user starts has the default of vLLM.
- Each generation follows a sync of all weights, with adapters merged, after which the prefix cache is cleared.
- `compute_liger_loss` passes the importance ratio on since 0.29.
- From 0.28 to 1.9 a colocated engine in sleep mode loaded its first checkpoint again after every sync (issue 5312).

Keys and defaults of each release are in ``trl_*_keys.json``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ckptcheck.jobs.dated_defaults import FrameworkVersion
from ckptcheck.jobs.document import Document, Leaf
from ckptcheck.jobs.engine_flags import apply_engine_arguments
from ckptcheck.jobs.framework import (
    Bound,
    FieldSource,
    Framework,
    derive_setting,
    expand_mapping,
    expand_negations,
    find_written,
    is_switched_on,
    name_loss_weight,
    normalize_dtype,
    read_section,
    read_setting,
    set_default,
    set_derived,
    set_weights,
)
from ckptcheck.jobs.interpolation import ResolvedValue, resolve
from ckptcheck.jobs.job import Job, Setting
from ckptcheck.jobs.key_table import KeyTable, load_key_table, set_from_table
from ckptcheck.jobs.python_source.script import PythonScript
from ckptcheck.jobs.python_source.values import to_plain
from ckptcheck.jobs.transformers_flags import ACCELERATE_FLAGS, TRAINING_ARGUMENTS

TRL = "TRL"
SERVER = "server"
"""The section that holds the options of the command that starts vLLM's server."""
TRAINERS = {"rloo": re.compile(r"rloo", re.IGNORECASE), "async_grpo": re.compile(r"async_?grpo", re.IGNORECASE)}
"""Trainer → what the name of its script, or of its configuration's class, contains; every other one is GRPO."""
CONFIGS = {"GRPOConfig": "GRPOTrainer", "RLOOConfig": "RLOOTrainer", "AsyncGRPOConfig": "AsyncGRPOTrainer"}
"""Class of a configuration → class of the trainer that takes it."""
MODEL_CONFIG = "ModelConfig"
"""Class with the settings of the model and of its adapter, as TRL's scripts parse it beside the trainer's."""
OWN_KEYS = {"rloo": ("normalize_advantages",), "async_grpo": ("max_staleness", "weight_sync_steps")}
"""Trainer → keys that the others do not have."""
NOT_OF_A_CLASS = frozenset(("config", "accelerate_config", SERVER))
OWN_SCRIPT = re.compile(r"\btrl[./](cli\b.*)?scripts[./](grpo|rloo)\b")
"""TRL's own scripts, which drop a key of the YAML file that no class has (``fail_with_unknown_args=False``)."""

CLIPS = (
    ("vllm_importance_sampling_clip_min",),
    ("vllm_importance_sampling_cap", "vllm_importance_sampling_clip_max"),
)
"""Keys of the least and the largest importance weight; the cap, which came first, wins where both are written."""
ONE_END, ALL_ENDS = (1, 9), (1, 16)
"""The last release that was read whose trainers know the tokenizer's EOS alone (``completion_ids == eos_token_id``), and the first
that knows those of generation_config.json too (``self.eos_token_ids``, issue 7039)."""

PATHS: Mapping[str, FieldSource] = {
    "trainer.lora": FieldSource(("use_peft",)),
    "trainer.fp32_head": FieldSource(("cast_lm_head_to_fp32",)),
    "rollout.temperature": FieldSource(("generation_kwargs.temperature", "temperature")),
    "rollout.top_p": FieldSource(("generation_kwargs.top_p", "top_p")),
    "rollout.top_k": FieldSource(("generation_kwargs.top_k", "top_k")),
    "rollout.min_p": FieldSource(("generation_kwargs.min_p", "min_p")),
    "rollout.repetition_penalty": FieldSource(("generation_kwargs.repetition_penalty", "repetition_penalty")),
    "rollout.presence_penalty": FieldSource(("generation_kwargs.presence_penalty",)),
    "rollout.frequency_penalty": FieldSource(("generation_kwargs.frequency_penalty",)),
    "rollout.prompt_length": FieldSource(("max_prompt_length",)),
    "rollout.response_length": FieldSource(("generation_kwargs.max_tokens", "max_completion_length")),
    "rollout.n": FieldSource(("num_generations",)),
    "algorithm.loss_weight": FieldSource(("loss_type",), read=name_loss_weight),
    "trainer.masks_truncated": FieldSource(("mask_truncated_completions",)),
    "batch.micro": FieldSource(("per_device_train_batch_size",)),
    "checkpoint.model": FieldSource(("model_name_or_path",)),
}  # fmt: skip
COLOCATED: Mapping[str, FieldSource] = {
    "engine.tp": FieldSource(("vllm_tensor_parallel_size",)),
    "engine.max_model_len": FieldSource(("vllm_max_model_length", "vllm_max_model_len")),
    "engine.memory": FieldSource(("vllm_gpu_memory_utilization",)),
    "engine.prefix_caching": FieldSource(("vllm_enable_prefix_caching",)),
}


def _finish(job: Job, document: Document) -> None:
    """Read the job by its release, and set the fields that depend on several keys."""
    trainer = _find_trainer(document)
    table = load_key_table(Path(__file__).with_name(f"{trainer}_keys.json"))
    _normalize(document, table)
    # Some releases of TRL change the defaults of transformers' own keys, so these say nothing of the release.
    number, behaviour = table.pick_release(job, document, TRAINING_ARGUMENTS)
    release = table.version(behaviour)
    of = f"{TRL} {table.describe(number).removeprefix('v')}"
    others = TRAINING_ARGUMENTS | ACCELERATE_FLAGS | NOT_OF_A_CLASS
    for unknown in table.list_unknown_flags(document, number, others):
        in_yaml = (unknown.leaf.file or "").endswith((".yaml", ".yml"))
        is_dropped = unknown.near and in_yaml and OWN_SCRIPT.search(document.script)
        job.unknown_keys.append(replace(unknown, dropped_by=TRL) if is_dropped else unknown)
    for name, source in PATHS.items():
        set_from_table(job, document, name, source, table, number, of)
    job.settings["trainer.filters"] = read_setting(job, document, "trainer.filters", FieldSource())
    if release >= (0, 16):
        set_derived(job, "trainer.temperature", job["rollout.temperature"].value, job["rollout.temperature"])
    else:
        set_default(job, "trainer.temperature", 1.0, of)
    _set_backend_and_dtype(job, document, release, of)
    # Without a mask they count only where generate() writes the completions.
    if trainer != "async_grpo" and (job.flag("trainer.masks_truncated") or not is_switched_on(document, "use_vllm")):
        _set_end_tokens(job)
    _set_default_lag(job, document, trainer, table, number, of)
    if trainer != "async_grpo" and not is_switched_on(document, "use_vllm"):
        job.settings["engine.name"] = Setting(
            "transformers", "default", f"default of {of}: generate() of the trained model"
        )
        job.settings["engine.fp32_head"] = job["trainer.fp32_head"]
        return
    _read_engine(job, document, trainer, table, number, release, of)
    _set_correction(job, document, trainer, table, number, of)
    liger = find_written(document, "use_liger_kernel", "use_liger_loss")
    if liger is not None and liger.value is True and job.text("algorithm.weight") is not None:
        by_liger = read_setting(job, document, "algorithm.weight", FieldSource())
        if by_liger.is_known:
            set_weights(job, derive_setting(liger, True), of)


def _normalize(document: Document, table: KeyTable) -> None:
    """Normalize arguments with several forms: ``--no_x``, JSON objects, ``env:`` of a YAML
    file.
    """
    for path, leaf in list(document.leaves.items()):
        if path.startswith("env."):
            document.environment[path.removeprefix("env.")] = leaf
            document.remove(path)
    expand_negations(document, lambda path: path in TRAINING_ARGUMENTS or table.has(path))
    for path in ("generation_kwargs", "model_init_kwargs"):
        expand_mapping(document, path)


def _find_trainer(document: Document) -> str:
    """Return grpo, rloo or async_grpo, by the name of the script or by keys that only one of them has."""
    for name, pattern in TRAINERS.items():
        if pattern.search(document.script):
            return name
    return next((name for name, keys in OWN_KEYS.items() if any(document.has(key) for key in keys)), "grpo")


def _set_backend_and_dtype(job: Job, document: Document, release: tuple[int, ...], of: str) -> None:
    """Set the trainer's backend of distribution, and the dtype of its matrix products: autocast's or the weights'."""
    how = (
        f"{document.script} {getattr(find_written(document, 'accelerate_config', 'config_file'), 'value', '')}".lower()
    )
    deepspeed = find_written(document, "deepspeed")
    backend = (
        "deepspeed" if deepspeed or "deepspeed" in how or "zero" in how else "fsdp" if "fsdp" in how else "transformers"
    )
    job.settings["trainer.backend"] = Setting(backend, "default", f"default of {of}")
    fp16, bf16 = find_written(document, "fp16"), find_written(document, "bf16")
    if fp16 is not None and fp16.value is True:
        job.settings["trainer.dtype"] = Setting("float16", "set", "", fp16.leaf)
    elif bf16 is not None and bf16.value is True:
        job.settings["trainer.dtype"] = Setting("bfloat16", "set", "", bf16.leaf)
    elif bf16 is None and release >= (0, 19):
        job.settings["trainer.dtype"] = Setting("bfloat16", "default", f"default of {of}: bf16 autocast")
    else:
        weights = find_written(
            document, "model_init_kwargs.dtype", "model_init_kwargs.torch_dtype", "dtype", "torch_dtype"
        )
        if weights is not None and weights.value not in ("auto", None):
            job.settings["trainer.dtype"] = Setting(
                str(normalize_dtype(weights.value)), "set", weights.reason, weights.leaf
            )


def _set_end_tokens(job: Job) -> None:
    """Set which tokens end a completion for the trainer, by the release that the job names."""
    version = job.defaults.version if job.defaults is not None else FrameworkVersion()
    numbers = version.release[:2]
    if numbers and (numbers <= ONE_END or numbers >= ALL_ENDS):
        value = "tokenizer" if numbers <= ONE_END else "all"
        job.settings["trainer.end_tokens"] = Setting(value, "default", f"default of {TRL} {version.text}")
        return
    one, many = (".".join(map(str, each)) for each in (ONE_END, ALL_ENDS))
    reason = f"{TRL} {one} and earlier know the tokenizer's EOS alone, {many} knows all; --framework-version gives the version"
    job.settings["trainer.end_tokens"] = Setting(None, "unresolved", reason)


def _set_default_lag(job: Job, document: Document, trainer: str, table: KeyTable, number: int, of: str) -> None:
    """Set how old rollouts may be. GRPO and RLOO sync before each generation; asynchronous GRPO generates all the time."""
    if trainer != "async_grpo":
        set_default(job, "algorithm.lag", 0, TRL)
        set_default(job, "update.in_flight", False, TRL)
        return
    set_from_table(job, document, "algorithm.lag", FieldSource(("max_staleness",)), table, number, of)
    set_default(job, "update.in_flight", True, of)
    set_default(job, "update.pause_mode", "keep", of)


def _read_engine(
    job: Job, document: Document, trainer: str, table: KeyTable, number: int, release: tuple[int, ...], of: str
) -> None:
    """Set the engine's fields: if it is colocated from the trainer's own keys, or else from the server's command.

    number: the release whose defaults apply; release: the release whose behaviour applies.
    """
    use, mode = find_written(document, "use_vllm"), find_written(document, "vllm_mode")
    default_mode = table.find("vllm_mode", number)
    if trainer == "async_grpo":
        is_server = True
    elif mode is not None:
        is_server = mode.value == "server"
    else:
        # Before 0.18 there was only a server, or (before 0.16) an engine on a GPU of its own.
        is_server = (default_mode.default if default_mode else "server") == "server"
    job.settings["engine.name"] = Setting("vllm", "set" if use else "default", f"default of {of}", None)
    if mode is not None and mode.reason:
        job.settings["engine.logprobs"] = Setting(None, "unresolved", mode.reason, mode.leaf)
        return
    set_default(job, "engine.dtype", "auto", of)
    set_default(job, "update.mode", "full", TRL)
    if trainer != "async_grpo":
        set_default(job, "update.merges_lora", True, TRL)
    set_default(job, "engine.colocated", not is_server, of)
    set_default(job, "engine.quantization", "none", of)
    if not (trainer == "async_grpo" and not is_switched_on(document, "use_peft")):
        set_default(job, "update.clears_cache", True, TRL)
    if is_server:
        _read_server(job, document, release, of, mode)
        return
    for name, source in COLOCATED.items():
        set_from_table(job, document, name, source, table, number, of)
    _set_logprobs(job, document, "colocate")
    if is_switched_on(document, "vllm_enable_sleep_mode"):
        sleep = resolve(document, "vllm_enable_sleep_mode")
        leaf = sleep.leaf if sleep else None
        job.settings["engine.sleep_level"] = Setting(2, "set", "", leaf)
        undone = read_setting(job, document, "update.undone_by", FieldSource())
        if undone.value != "none":
            job.settings["update.undone_by"] = Setting(of, "set", "", leaf)


def _read_server(job: Job, document: Document, release: tuple[int, ...], of: str, mode: ResolvedValue | None) -> None:
    """Set the engine's fields by the options of the command that starts the server, where the script has it."""
    arguments = read_section(document, SERVER)
    is_own = "vllm-serve" in document.engine_script or "vllm_serve" in document.engine_script
    if document.engine_script:
        for name in ("engine.dtype", "engine.quantization"):
            del job.settings[name]
        apply_engine_arguments(
            job, "vllm", arguments, beside=frozenset(("vllm_model_impl", "model", "log_level", "config"))
        )
    if is_own or (release < (1, 11) and not document.engine_script):
        _set_logprobs(job, document, "server")
    elif not document.engine_script:
        url = find_written(document, "vllm_server_base_url", "vllm_server_host")
        leaf = mode.leaf if mode else url.leaf if url else Leaf(None, "vllm_server_base_url", job.files[0])
        for name in ("engine.logprobs", "engine.prefix_caching"):
            job.settings[name] = Setting(None, "unresolved", "the command that starts vLLM's server sets it", leaf)


def _set_logprobs(job: Job, document: Document, mode: str) -> None:
    """Set whether vLLM's logprobs are raw, by the release and the mode, unless a command of the job says it."""
    if job.defaults is not None:
        job.defaults = replace(job.defaults, script=f"vllm_mode={mode}")
    if job["engine.logprobs"].status == "unknown":
        job.settings["engine.logprobs"] = read_setting(job, document, "engine.logprobs", FieldSource())


def _set_correction(job: Job, document: Document, trainer: str, table: KeyTable, number: int, of: str) -> None:
    """Set the importance correction between vLLM and the trainer, and whether the engine's logprobs enter the loss."""
    if trainer == "async_grpo":
        set_default(job, "algorithm.correction", "policy ratio", of)
        set_default(job, "algorithm.uses_rollout_logprobs", True, of)
        set_default(job, "rollout.logprobs", True, of)
        return
    key = table.find("vllm_importance_sampling_correction", number)
    switch, mode = (
        find_written(document, "vllm_importance_sampling_correction"),
        find_written(document, "vllm_importance_sampling_mode"),
    )
    default_mode = table.find("vllm_importance_sampling_mode", number)
    if key is None:
        name, like = "none", Setting("none", "default", f"default of {of}")
    elif switch is not None and (switch.reason or switch.value is False):
        name, like = "none", derive_setting(switch, "none")
    else:
        name = str(mode.value) if mode else str(default_mode.default) if default_mode else "token_truncate"
        found = mode or switch
        like = derive_setting(found, name) if found else Setting(name, "default", f"default of {of}")
    job.settings["algorithm.correction"] = like
    set_derived(job, "algorithm.uses_rollout_logprobs", name != "none", like)
    level, _, action = name.partition("_")
    low, high = (_find_bound(document, table, number, keys) for keys in CLIPS)
    if action == "mask":
        set_weights(job, like, of, weight=level, mask=level, kept=(low, high))
    else:
        set_weights(job, like, of, weight=level, cut=(low, high))
    masked = find_written(document, "off_policy_mask_threshold")
    set_derived(job, "rollout.logprobs", name != "none" or masked is not None, like)


def _find_bound(document: Document, table: KeyTable, number: int, keys: tuple[str, ...]) -> Bound:
    """Return a bound of the importance weights, of the first key that is written, or else the release's default."""
    known = [key for name in keys if (key := table.find(name, number)) is not None]
    default = next((key.default for key in known if isinstance(key.default, (int, float))), None)
    return find_written(document, *keys) or default


def _read_python(script: PythonScript) -> Document | None:
    """Return the keywords of the last configuration that a script builds, with the model and the adapter of its trainer."""
    configs = [call for call in script.calls if call.ends_with(*CONFIGS)]
    if not configs:
        return None
    document = Document()
    for config in (call for call in script.calls if call.ends_with(MODEL_CONFIG)):
        document.update(config.to_document())
    document.update(configs[-1].to_document())
    document.script = configs[-1].name
    if configs[-1].result.is_parsed:
        document.takes_flags = configs[-1].file
    for trainer in (call for call in script.calls if call.ends_with(*CONFIGS.values())):
        keywords = trainer.to_document()
        adapter = keywords.leaves.get("peft_config", Leaf("", "peft_config"))
        if keywords.has("peft_config") and (adapter.value is not None or adapter.reason):
            document.put("use_peft", Leaf(True, "peft_config", trainer.file, trainer.line))
        model = keywords.leaves.get("model")
        loaded = [call for call in script.calls if call.ends_with("from_pretrained") and "ForCausalLM" in call.name]
        if model is not None and model.reason and len(loaded) == 1 and loaded[0].arguments:
            name, reason = to_plain(loaded[0].arguments[0])
            model = Leaf(name, "from_pretrained", loaded[0].file, loaded[0].line, reason)
        # The command line gives a parsed one.
        if model is not None and not (document.takes_flags and model.reason):
            document.put("model_name_or_path", model)
    return document


FRAMEWORK = Framework(
    name="trl",
    title=TRL,
    style="flags",
    sources={},
    signs=tuple(
        ("model_name_or_path", key)
        for key in (
            "num_generations",
            "use_vllm",
            "max_completion_length",
            "reward_funcs",
            "vllm_mode",
            "max_staleness",
        )
    ),
    launches=re.compile(
        r"\btrl\s+(grpo|rloo)\b|\btrl[./]scripts[./](grpo|rloo)\b"
        r"|^(?!.*\b(online_dpo|nash_md|xpo|gkd|gold|dpo|sft|kto|ppo|sdpo|sdft|ssd|tpo|\w*distillation|minillm)\w*\.py\b)"
        r"(?=.*\.py\b)(?=.*--model_name_or_path\b).*--(num_generations|use_vllm|vllm_mode|max_completion_length|max_staleness)\b",
        re.DOTALL,
    ),
    config_options=("--config",),
    engine_launches=re.compile(r"\btrl\s+vllm-serve\b|\btrl[./]scripts[./]vllm_serve\b|\bvllm\s+serve\b"),
    read_python=_read_python,
    package="trl",
    finish=_finish,
    ports=(("server.port", ""),),
    precedence=1,
)
