"""Reads prime-rl's configurations: TOML and the command line ``rl @ FILE --a.b value``.

The TOML is one file, or one file each for trainer, orchestrator and inference.

Names and defaults: src/prime_rl/configs of PrimeIntellect-ai/prime-rl, in the layouts before and after ``inference.vllm``.
prime-rl asks vLLM for processed logprobs and computes its own at the temperature of each rollout; the engine's logprobs
are the old ones of its ratio. Weights change in flight; requests carry a cache salt, so that no prefix of older weights
is found (``use_prefix_cache_salt``).
"""

from __future__ import annotations

import re

from ckptcheck.jobs.document import Document
from ckptcheck.jobs.engine_flags import apply_engine_arguments
from ckptcheck.jobs.framework import FieldSource, Framework, normalize_dtype, read_section, set_derived
from ckptcheck.jobs.interpolation import resolve
from ckptcheck.jobs.job import Job, Setting

PRIME = "prime-rl"
SAMPLING = ("orchestrator.train.sampling", "orchestrator.sampling")


def _sampling_paths(name: str) -> tuple[str, ...]:
    """Return the paths of a sampling parameter in the newer and the older layout."""
    return tuple(f"{section}.{name}" for section in SAMPLING)


SOURCES = {
    "trainer.backend": FieldSource(),
    "trainer.dtype": FieldSource(),
    "trainer.tp": FieldSource(("trainer.model.tp",)),
    "trainer.ep": FieldSource(("trainer.model.ep",)),
    "trainer.cp": FieldSource(("trainer.model.cp",)),
    "trainer.temperature": FieldSource(_sampling_paths("temperature")),
    "trainer.max_length": FieldSource(("trainer.model.seq_len", "seq_len")),
    "engine.name": FieldSource(),
    "engine.tp": FieldSource(("inference.parallel.tp",)),
    "engine.dtype": FieldSource(("inference.model.dtype",), read=normalize_dtype),
    "engine.max_model_len": FieldSource(("inference.model.max_model_len", "max_model_len")),
    "engine.memory": FieldSource(("inference.gpu_memory_utilization",)),
    "engine.logprobs": FieldSource(),
    "engine.prefix_caching": FieldSource(("inference.enable_prefix_caching",)),
    "engine.fp32_head": FieldSource(("inference.enable_fp32_lm_head",)),
    "rollout.temperature": FieldSource(_sampling_paths("temperature")),
    "rollout.top_p": FieldSource((*_sampling_paths("top_p"), *_sampling_paths("extra_body.top_p"))),
    "rollout.top_k": FieldSource((*_sampling_paths("top_k"), *_sampling_paths("extra_body.top_k"))),
    "rollout.min_p": FieldSource((*_sampling_paths("min_p"), *_sampling_paths("extra_body.min_p"))),
    "rollout.repetition_penalty": FieldSource(
        (*_sampling_paths("repetition_penalty"), *_sampling_paths("extra_body.repetition_penalty"))
    ),
    "rollout.presence_penalty": FieldSource(
        (*_sampling_paths("presence_penalty"), *_sampling_paths("extra_body.presence_penalty"))
    ),
    "rollout.frequency_penalty": FieldSource(
        (*_sampling_paths("frequency_penalty"), *_sampling_paths("extra_body.frequency_penalty"))
    ),
    "rollout.response_length": FieldSource((*_sampling_paths("max_completion_tokens"), *_sampling_paths("max_tokens"))),
    "rollout.n": FieldSource(
        ("orchestrator.group_size", "orchestrator.train.group_size", "orchestrator.rollouts_per_example")
    ),
    "rollout.logprobs": FieldSource(),
    "update.in_flight": FieldSource(),
    "algorithm.uses_rollout_logprobs": FieldSource(),
    "algorithm.correction": FieldSource(),
    "algorithm.lag": FieldSource(
        ("orchestrator.max_off_policy_steps", "orchestrator.max_async_level", "max_async_level")
    ),
    "batch.train": FieldSource(("orchestrator.batch_size",)),
    "checkpoint.model": FieldSource(("inference.model.name", "model.name")),
    "checkpoint.trainer": FieldSource(("trainer.model.name",)),
    "trainer.router_replay": FieldSource(
        ("trainer.enable_router_replay",), "none", PRIME, lambda value: "rollout" if value is True else "none"
    ),
    "trainer.tokenizer": FieldSource(("trainer.tokenizer.name", "orchestrator.tokenizer.name")),
    "trainer.chat_template": FieldSource(("orchestrator.tokenizer.chat_template", "tokenizer.chat_template")),
    "engine.chat_template": FieldSource(("inference.model.chat_template",)),
    "update.transport": FieldSource(("trainer.weight_broadcast.type", "weight_broadcast.type")),
    "update.quantizes": FieldSource(
        tuple(f"{section}.quantize_in_weight_transfer" for section in ("trainer.weight_broadcast", "weight_broadcast")),
        False,
        PRIME,
    ),
    "save.interval": FieldSource(("trainer.ckpt.interval", "ckpt.interval")),
    "save.directory": FieldSource(("output_dir", "trainer.output_dir")),
}
SALTS = ("orchestrator.use_prefix_cache_salt", "orchestrator.experimental.use_prefix_cache_salt")
RESET = "inference.reset_prefix_cache_after_update"


def _finish(job: Job, document: Document) -> None:
    """Set the engine's arguments and the fields that depend on several keys."""
    for section in ("inference.vllm", "inference.vllm_extra", "inference.vllm_args"):
        apply_engine_arguments(job, "vllm", read_section(document, section))
    if job.text("trainer.router_replay") == "rollout" and document.has("inference"):
        # `auto_setup_router_replay`; an inference server started by hand has its own line.
        set_derived(job, "engine.routed_experts", True, job["trainer.router_replay"])
    job.settings["trainer.lora"] = _read_lora(document)
    for section in ("trainer.model.vlm", "model.vlm"):
        # Updates pause vLLM with ``clear_cache=False``, and nothing else resets its encoder's outputs.
        frozen = resolve(document, f"{section}.freeze_vision_encoder")
        if frozen is not None and isinstance(frozen.value, bool):
            job.settings["engine.keeps_encoder_cache"] = Setting(not frozen.value, "set", "", frozen.leaf)
            break
    salt = next((value for path in SALTS if (value := resolve(document, path)) is not None), None)
    reset = resolve(document, RESET)
    if salt is not None and salt.value is False and not (reset is not None and reset.value is True):
        job.settings["update.clears_cache"] = Setting(False, "set", "", salt.leaf)
    else:
        job.settings["update.clears_cache"] = Setting(True, "default", f"default of {PRIME}: a cache salt")


def _read_lora(document: Document) -> Setting:
    """Return whether the trainer has a section ``lora``: then prime-rl turns vLLM's adapters on itself."""
    for section in ("trainer.model.lora", "model.lora"):
        if document.has(section):
            leaf = next((leaf for _, leaf in document.iter_section(section)), document.leaves.get(section))
            return Setting(True, "set", "", leaf)
    return Setting(False, "default", f"default of {PRIME}")


PARTS = {"train": "trainer", "orch": "orchestrator", "infer": "inference"}
"""Beginning of a file's name → section of its values, for a job in several files: train.toml, orch.toml, infer.toml."""
FRAMEWORK = Framework(
    name="prime-rl",
    title=PRIME,
    style="dotted",
    sources=SOURCES,
    signs=(("orchestrator", "trainer"), ("orchestrator", "inference"), ("orchestrator", "model")),
    launches=re.compile(r"(^|\s)(\S*/)?rl\s+(@|--trainer|--orchestrator|--inference)|prime_rl\.\S*rl\b|\brl\.py\s+@"),
    finish=_finish,
    # pydantic's extra="allow" (prime_rl/configs/inference.py:55)
    open_sections=("inference.vllm.",),
    ports=(("inference.server.port", ""),),
    parts=PARTS,
)
