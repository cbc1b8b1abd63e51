"""Reads AReaL's jobs: an experiment's YAML, and ``python train.py --config FILE a.b=c``.

Keys and defaults, release by release: ``keys.json``, learned from ``areal/api/cli_args.py`` of areal-project/AReaL up to
cbff54d64 (August 2026, after 2.0.0). A job is read by the newest release that knows the most of its keys.

What the settings do, at 4aef98d8d:

- The engine samples with gconfig (``build_generation_request``), and the trainer divides its logits by actor.temperature, which
  is 1 by default: one does not follow the other. The trainer applies no top-p and no top-k.
- vLLM is started without a logprobs_mode, so that it returns raw logprobs; SGLang returns processed ones.
- Options that are false are not passed to the engine (``get_py_cmd``): no_enable_prefix_caching: false means a prefix cache.
- A weight update pauses generation: requests are aborted, the cache is cleared, and the client sends them again.
- The loss takes the engine's logprobs as old ones, or corrects by them with use_decoupled_loss, unless recompute_logprob replaces
  them (``ppo/actor.py``).
- A sequence of more than mb_spec.max_tokens_per_mb tokens stops the job (``ffd_allocate``).
"""

from __future__ import annotations

import re
from pathlib import Path

from ckptcheck.errors import CkptcheckError
from ckptcheck.frameworks.areal.allocation import ENGINES, TRAINERS, Part, parse_allocation, parse_part
from ckptcheck.jobs.document import Document
from ckptcheck.jobs.framework import (
    FieldSource,
    Framework,
    derive_setting,
    find_written,
    is_positive,
    leave_out_unresolved,
    name_loss_weight,
    negate,
    normalize_dtype,
    read_setting,
    remove_settings,
    set_derived,
    set_weights,
)
from ckptcheck.jobs.interpolation import ResolvedValue, resolve
from ckptcheck.jobs.job import Job, Setting, UnknownKey
from ckptcheck.jobs.key_table import load_key_table, set_from_table

AREAL = "AReaL"
ACTOR, SAMPLING = "actor", "gconfig"
MOST_TOP_K = 1_000_000
"""This or a larger top-k filters nothing; AReaL's default is 10⁸."""


def _top_k(value: object) -> object:
    return -1 if isinstance(value, (int, float)) and value >= MOST_TOP_K else value


PATHS: dict[str, FieldSource] = {
    "trainer.dtype": FieldSource((f"{ACTOR}.dtype",), read=normalize_dtype),
    "trainer.temperature": FieldSource((f"{ACTOR}.temperature",)),
    "rollout.temperature": FieldSource((f"{SAMPLING}.temperature",)),
    "rollout.top_p": FieldSource((f"{SAMPLING}.top_p",)),
    "rollout.top_k": FieldSource((f"{SAMPLING}.top_k",), read=_top_k),
    "rollout.frequency_penalty": FieldSource((f"{SAMPLING}.frequency_penalty",)),
    "rollout.response_length": FieldSource((f"{SAMPLING}.max_new_tokens",)),
    "rollout.prompt_length": FieldSource(("train_dataset.max_length",)),
    "rollout.n": FieldSource((f"{SAMPLING}.n_samples",)),
    "algorithm.loss_weight": FieldSource((f"{ACTOR}.use_cispo_loss",), read=name_loss_weight),
    "algorithm.lag": FieldSource(("rollout.max_head_offpolicyness",)),
    "batch.train": FieldSource(("train_dataset.batch_size",)),
    "trainer.lora": FieldSource((f"{ACTOR}.use_lora",)),
    "trainer.tokenizer": FieldSource(("tokenizer_path",)),
    "engine.routed_experts": FieldSource(("rollout.return_routed_experts",)),
    "update.transport": FieldSource((f"{ACTOR}.weight_update_mode",)),
    "save.directory": FieldSource(("saver.fileroot", "cluster.fileroot")),
    "save.interval": FieldSource(("saver.freq_steps",)),
    "checkpoint.trainer": FieldSource((f"{ACTOR}.path",)),
}
"""Field → where AReaL has it; the default is that of the job's release."""
BY_ENGINE: dict[str, dict[str, FieldSource]] = {
    "sglang": {
        "engine.dtype": FieldSource(("sglang.dtype",), read=normalize_dtype),
        "engine.kv_cache_dtype": FieldSource(("sglang.kv_cache_dtype",)),
        "engine.quantization": FieldSource(("sglang.quantization",)),
        "engine.max_model_len": FieldSource(("sglang.context_length",)),
        "engine.memory": FieldSource(("sglang.mem_fraction_static",)),
        "engine.prefix_caching": FieldSource(("sglang.disable_radix_cache",), read=negate),
        "engine.async_scheduling": FieldSource(("sglang.disable_overlap_schedule",), read=negate),
        "engine.chunked_prefill": FieldSource(("sglang.chunked_prefill_size",), read=is_positive),
        "checkpoint.model": FieldSource(("sglang.model_path", f"{ACTOR}.path")),
    },
    "vllm": {
        "engine.dtype": FieldSource(("vllm.dtype",), read=normalize_dtype),
        "engine.quantization": FieldSource(("vllm.quantization",)),
        "engine.max_model_len": FieldSource(("vllm.max_model_len",)),
        "engine.memory": FieldSource(("vllm.gpu_memory_utilization",)),
        "engine.prefix_caching": FieldSource(("vllm.no_enable_prefix_caching",), read=negate),
        "engine.chunked_prefill": FieldSource(("vllm.no_enable_chunked_prefill",), read=negate),
        "checkpoint.model": FieldSource(("vllm.model", f"{ACTOR}.path")),
    },
}
BY_MEGATRON: dict[str, FieldSource] = {
    "trainer.vpp": FieldSource((f"{ACTOR}.megatron.virtual_pipeline_parallel_size",)),
}
SIZES = {"tp": "t", "pp": "p", "cp": "c", "ep": "e"}


def _finish(job: Job, document: Document) -> None:
    """Read the job by the release that knows its keys, and set the fields that depend on several of them."""
    if any(path.endswith(".type._class") for path in document.leaves):
        raise CkptcheckError(
            f"{job.target} is a configuration of AReaL's first system (realhf, until v0.5.1), which ckptcheck does not read",
            hint="ckptcheck reads the configurations of areal/api/cli_args.py, since v0.3.1",
        )
    table = load_key_table(Path(__file__).with_name("keys.json"))
    top = frozenset(name for number in range(table.newest + 1) for name in table.names_below("", number))
    release = table.date_job(job, (path for path in document.leaves if path.partition(".")[0] in top))
    has_engine = any(document.has(section) for section in ("rollout", "sglang", "vllm", SAMPLING))
    # The job's own class may have more keys at the top; those of AReaL's sections are known in full. Without an engine another
    # class of AReaL's reads the file (DPOConfig: actor.beta).
    job.unknown_keys += table.list_unknown_keys(document, release, top, AREAL if has_engine else "")
    default = f"{AREAL} {table.describe(release)}"

    def set_fields(sources: dict[str, FieldSource]) -> None:
        for name, source in sources.items():
            set_from_table(job, document, name, source, table, release, default)

    set_fields(PATHS)
    _set_allocation(job, document)
    if job.engine != "sglang":
        job.settings.pop("rollout.frequency_penalty", None)  # only SGLang's requests have it
    set_fields(BY_ENGINE.get(job.engine, {}))
    # SGLang's choices of experts come with the tokens, and no trainer of AReaL reads them.
    job.settings["trainer.router_replay"] = Setting("none", "default", f"default of {AREAL}")
    merges = read_setting(job, document, "update.merges_lora", FieldSource())
    if merges.is_known:
        # A request names the adapter only with rollout.use_lora (``RemoteInfEngine``), and no update merges it.
        job.settings["update.merges_lora"] = merges
        set_fields({"engine.lora": FieldSource(("rollout.use_lora",))})
    if job.text("trainer.backend") == "megatron":
        set_fields(BY_MEGATRON)
        fusion = FieldSource((f"{ACTOR}.megatron.moe_permute_fusion",))
        job.settings["trainer.moe_permute_fusion"] = read_setting(job, document, "trainer.moe_permute_fusion", fusion)
        if document.has(f"{ACTOR}.megatron.fp8_config"):
            mode = resolve(document, f"{ACTOR}.megatron.fp8_config.mode")
            is_on = mode is None or mode.value not in (None, "disabled")
            job.settings["trainer.fp8"] = derive_setting(mode, is_on) if mode else Setting(is_on, "set")
    for name in ("trainer.filters", "rollout.logprobs", "update.clears_cache"):
        job.settings[name] = read_setting(job, document, name, FieldSource())
    greedy = resolve(document, f"{SAMPLING}.greedy")
    if greedy is not None and (greedy.value is True or greedy.reason):
        job.settings["rollout.temperature"] = derive_setting(greedy, 0)
    leave_out_unresolved(job, "save.directory", "update.directory")
    _set_correction(job, document)
    _set_update(job, document)
    _set_longest(job, document)
    if not has_engine:
        remove_settings(job, "engine.", "rollout.", "algorithm.", "update.")  # supervised training has no engine


def _set_allocation(job: Job, document: Document) -> None:
    """Set backends and parallel sizes, from ``rollout.backend`` and ``actor.backend`` or the older ``allocation_mode``."""
    whole = resolve(document, "allocation_mode")
    engine = trainer = None
    if whole is not None and whole.value:
        engine, trainer, rest = parse_allocation(str(whole.value))
        job.unknown_keys += (
            UnknownKey(whole.leaf, f"{piece} is no backend with sizes, as fsdp:d8 is") for piece in rest
        )
    sides: dict[str, tuple[ResolvedValue | None, Part | None]] = {
        "engine": (whole, engine),
        "trainer": (whole, trainer),
    }
    for side, path in {"engine": "rollout.backend", "trainer": f"{ACTOR}.backend", "critic": "critic.backend"}.items():
        written = resolve(document, path)
        if written is None or not (written.value or written.reason):
            continue
        part = parse_part(str(written.value)) if not written.reason else None
        if part is None and whole is not None:
            continue  # the older ``backend: fsdp`` beside an allocation_mode
        sides[side] = (written, part)
        if part is None and not written.reason and side != "critic":
            job.unknown_keys.append(
                UnknownKey(
                    written.leaf,
                    f"{written.value} is no backend with sizes, as fsdp:d8 is",
                    refused_by=AREAL if ":" in str(written.value) else "",
                    values=tuple(f"{name}:d8" for name in (ENGINES if side == "engine" else TRAINERS))
                    if ":" in str(written.value)
                    else (),
                )
            )
    for side, (written, part) in sides.items():
        if written is None or (part is None and not written.reason):
            continue
        values: dict[str, object] = {"name" if side == "engine" else "backend": part.backend if part else None}
        for name, letter in SIZES.items() if side != "engine" else (("tp", "t"), ("pp", "p")):
            values[name] = part[letter] if part else None
        values["world"] = part.world if part else None
        for name, value in values.items():
            job.settings[f"{side}.{name}"] = derive_setting(written, value)
    critic = "critic" in sides and sides["critic"][1] is not None
    job.settings["critic.enabled"] = (
        Setting(critic, "set") if critic else Setting(False, "default", f"default of {AREAL}")
    )
    if critic:
        job.settings["checkpoint.critic"] = read_setting(
            job, document, "checkpoint.critic", FieldSource(("critic.path",))
        )


def _set_correction(job: Job, document: Document) -> None:
    """Set how the loss uses the engine's logprobs, which every request asks for."""
    decoupled, recomputed = (resolve(document, f"{ACTOR}.{key}") for key in ("use_decoupled_loss", "recompute_logprob"))
    if decoupled is not None and (decoupled.value is True or decoupled.reason):
        name, written = "decoupled loss", decoupled
    elif recomputed is not None and (recomputed.value is True or recomputed.reason):
        name, written = "none", recomputed
    else:
        name, written = "policy ratio", None
    like = derive_setting(written, name) if written else Setting(name, "default", f"default of {AREAL}")
    job.settings["algorithm.correction"] = like
    set_derived(job, "algorithm.uses_rollout_logprobs", name != "none", like)
    if name == "decoupled loss":
        _set_weights(job, document, like)
    elif name == "none":
        set_weights(job, like, AREAL)


def _set_weights(job: Job, document: Document, like: Setting) -> None:
    """Set the importance weights (`apply_rejection_sampling`): of a sequence they are the mean of its log ratios."""
    section = f"{ACTOR}.rejection_sampling"
    level, action, metric, agg = (
        find_written(document, f"{section}.{key}") for key in ("level", "action", "metric", "agg")
    )
    weight = mask = "token"
    if metric is not None and metric.value != "ratio":
        mask = "none"
    elif level is not None and level.value == "sequence":
        weight = "geometric"
        mask = {"mean": "geometric", "sum": "sequence"}.get(str(agg.value) if agg is not None else "mean", "none")
    bounds = find_written(document, f"{section}.lower"), find_written(document, f"{section}.upper") or 5.0
    if not document.has(section) and not any(document.iter_section(section)):
        set_weights(job, like, AREAL, weight="token")
    elif action is not None and action.value == "clamp":
        set_weights(job, like, AREAL, weight=weight, cut=bounds if mask != "none" else (None, None))
    else:
        set_weights(job, like, AREAL, weight=weight, mask=mask, kept=bounds)


def _set_update(job: Job, document: Document) -> None:
    """Set the fields of weight updates: requests that run are aborted and sent again, with a cleared cache."""
    lag = job["algorithm.lag"]
    set_derived(job, "update.in_flight", bool(lag.value), lag)
    if job.flag("update.in_flight"):
        job.settings["update.pause_mode"] = read_setting(job, document, "update.pause_mode", FieldSource())


def _set_longest(job: Job, document: Document) -> None:
    """Set the trainer's longest sequence, if the job says how long prompts are, or if a response alone is longer."""
    limit = resolve(document, f"{ACTOR}.mb_spec.max_tokens_per_mb")
    total = resolve(document, f"{SAMPLING}.max_tokens")
    if limit is None or not isinstance(limit.value, int):
        return
    prompt, response = job.number("rollout.prompt_length"), job.number("rollout.response_length")
    is_cut = total is not None and isinstance(total.value, int) and total.value <= limit.value
    if response is not None and (prompt is not None or response > limit.value) and not is_cut:
        job.settings["trainer.max_length"] = derive_setting(limit, limit.value)


FRAMEWORK = Framework(
    name="areal",
    title=AREAL,
    style="hydra",
    sources={},
    signs=(
        ("gconfig", "actor", "rollout"),
        ("allocation_mode", "actor"),
        ("experiment_name", "trial_name", "cluster.fileroot"),
    ),
    launches=re.compile(
        r"-m\s+areal\.\S{1,400}\s.{0,2000}--config\b|--config\b.{0,2000}\s(scheduler\.type|allocation_mode|rollout\.backend|actor\.backend|gconfig\.\w+"
        r"|cluster\.n_nodes)=",
        re.DOTALL,
    ),
    finish=_finish,
    data=("train_dataset.path", "valid_dataset.path"),
    precedence=1,
)
