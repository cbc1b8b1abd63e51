"""Reads PipelineRL's configurations: Hydra's YAML (conf/base.yaml and the files that build on it).

Names and defaults: conf/ of ServiceNow/PipelineRL, and the account of its move to vLLM V1
(https://huggingface.co/blog/ServiceNow-AI/correctness-before-corrections): the engine's logprobs are the old logprobs of
its ratio; weights change in flight, with ``pause_generation(mode="keep", clear_cache=False)``.
"""

from __future__ import annotations

import re

from ckptcheck.jobs.document import Document
from ckptcheck.jobs.engine_flags import apply_engine_arguments
from ckptcheck.jobs.framework import FieldSource, Framework, coerce, read_section, set_default, set_derived, split_names
from ckptcheck.jobs.interpolation import resolve
from ckptcheck.jobs.job import Job, Setting

PIPELINE = "PipelineRL"


def _dtype_of_load_as_bf16(value: object) -> object:
    return "bfloat16" if value is True else None


SOURCES = {
    "trainer.backend": FieldSource(),
    "trainer.dtype": FieldSource(("finetune.load_as_bf16",), read=_dtype_of_load_as_bf16),
    "trainer.temperature": FieldSource(("finetune.rl.temperature", "llm.parameters.temperature")),
    "trainer.filters": FieldSource(),
    "trainer.fp32_head": FieldSource(("finetune.fp32_lm_head", "fp32_lm_head")),
    "trainer.max_length": FieldSource(("finetune.seq_length",)),
    "engine.name": FieldSource(),
    "engine.v1": FieldSource(("vllm_config.use_v1",)),
    "engine.fp32_head": FieldSource(("fp32_lm_head",)),
    "rollout.temperature": FieldSource(("llm.parameters.temperature",)),
    "rollout.top_p": FieldSource(("llm.parameters.top_p",)),
    "rollout.top_k": FieldSource(("llm.parameters.top_k",)),
    "rollout.min_p": FieldSource(("llm.parameters.min_p",)),
    "rollout.repetition_penalty": FieldSource(("llm.parameters.repetition_penalty",)),
    "rollout.presence_penalty": FieldSource(("llm.parameters.presence_penalty",)),
    "rollout.frequency_penalty": FieldSource(("llm.parameters.frequency_penalty",)),
    "rollout.response_length": FieldSource(("llm.parameters.max_tokens",)),
    "rollout.n": FieldSource(("attempts",)),
    "rollout.from_engine": FieldSource(),
    "rollout.logprobs": FieldSource(),
    "update.in_flight": FieldSource(),
    "update.pause_mode": FieldSource(),
    "update.clears_cache": FieldSource(),
    "algorithm.uses_rollout_logprobs": FieldSource(),
    "algorithm.correction": FieldSource(),
    "algorithm.lag": FieldSource(("finetune.max_lag", "max_lag")),
    "checkpoint.model": FieldSource(("model_path", "finetune.config_name")),
    "trainer.lora": FieldSource(("finetune.lora.enabled",), False, PIPELINE),
    "save.interval": FieldSource(("finetune.save_checkpoint_steps",)),
    "save.directory": FieldSource(("output_dir",)),
}
V0 = "vLLM V0"
SAMPLING = split_names("""
    temperature top_p top_k min_p max_tokens max_completion_tokens n stop stop_token_ids seed logprobs presence_penalty
    frequency_penalty repetition_penalty ignore_eos include_stop_str_in_output skip_special_tokens extra_body stream
    logit_bias min_tokens tool_choice tools response_format
""")
"""What a request to vLLM takes (`llm.parameters`)."""


def _finish(job: Job, document: Document) -> None:
    """Set the engine's arguments and the fields that depend on several keys."""
    for key, backend in (("use_deepspeed", "deepspeed"), ("use_fsdp", "fsdp")):
        enabled = resolve(document, key)
        if enabled is not None and enabled.value is True:
            job.settings["trainer.backend"] = Setting(backend, "set", "", enabled.leaf)
        elif enabled is not None and job.text("trainer.backend") == backend:
            del job.settings["trainer.backend"]
    arguments = read_section(document, "vllm_config.vllm_kwargs")
    apply_engine_arguments(job, "vllm", arguments, beside=frozenset(("return_tokens_as_token_ids",)))
    _set_defaults_of_v0(job, document)
    _set_gpus(job, document)
    kind = resolve(document, "finetune.model_class")
    if kind is not None and str(kind.value).startswith("vision"):
        # All weights are trained, and updates pause vLLM with ``clear_cache=False``.
        job.settings["engine.keeps_encoder_cache"] = Setting(True, "set", "", kind.leaf)
    quantization = resolve(document, "vllm_config.quantization")
    if quantization is not None and quantization.value == "bf16_last_layer_fp32":
        job.settings["engine.fp32_head"] = Setting(True, "set", "", quantization.leaf)
    if job["algorithm.lag"].status == "unknown":
        leaf = next((document.leaves[key] for key in ("finetune.max_lag", "max_lag") if key in document.leaves), None)
        job.settings["algorithm.unbounded_lag"] = Setting(
            True, "set" if leaf else "default", f"default of {PIPELINE}", leaf
        )


GPUS_OF_A_NODE = 8
"""Of one among several nodes (`WorldMap`); a job on one node takes those that it finds there."""


def _set_gpus(job: Job, document: Document) -> None:
    """Set the GPUs that train, of several nodes: what `WorldMap._split_gpus_by_purpose` leaves (pipelinerl/world.py)."""
    nodes = document.environment.get("WORLD_SIZE")
    engine = [f"vllm_config.vllm_kwargs.{kind}-parallel-size" for kind in ("tensor", "pipeline")]
    names = ["actor_fraction", "preprocessor_fraction", "finetune_fraction", "replicas"]
    found = [resolve(document, path) for path in (*(f"world.{name}" for name in names), *engine)]
    sizes = [
        1 if each is None and number > 3 else each and coerce(each.value, "number") for number, each in enumerate(found)
    ]
    count = coerce(nodes.value, "number") if nodes is not None else None
    numbers = [size for size in (count, *sizes) if isinstance(size, (int, float)) and size >= 0]
    if nodes is None or len(numbers) < 7:
        return
    count, actor, preprocessor, finetune, replicas, tp, pp = numbers
    total, one, parts = int(count) * GPUS_OF_A_NODE, int(tp * pp), actor + preprocessor + finetune
    if count <= 1 or not (parts and one and replicas):
        return
    left = total
    for fraction in [actor, *([preprocessor] if preprocessor else [])]:
        share = int(max(int(total * (fraction / parts)), one) / replicas)
        left -= int(replicas) * (share - share % one)
    leaf = next((each.leaf for each in found if each is not None and not each.leaf.is_default), nodes)
    job.settings["trainer.world"] = Setting(left, "set", "", leaf)


def _set_defaults_of_v0(job: Job, document: Document) -> None:
    """Set the defaults of vLLM's V0 engine if the job uses it.

    V0 returns logprobs after temperature, top-p and top-k, and has no prefix cache unless the job turns it on. PipelineRL asks
    vllm_config.use_v1 which engine to start until April 2026; since then it starts V1 and does not read that key.
    """
    v1 = job["engine.v1"]
    if v1.status == "set" and job.defaults is not None and job.defaults.version.is_known:
        always = job.defaults.find("engine.v1")
        if always is not None and always.value is True:
            v1 = Setting(True, "default", f"default of {always.owner}")
    if v1.is_known and v1.value is False:
        for name in ("engine.prefix_caching", "engine.async_scheduling", "engine.cascade_attention"):
            set_default(job, name, False, V0)
        if job["engine.logprobs"].status == "unknown":
            set_derived(job, "engine.logprobs", "processed", v1)


FRAMEWORK = Framework(
    name="pipelinerl",
    title=PIPELINE,
    style="hydra",
    is_hydra=True,
    sources=SOURCES,
    signs=(("vllm_config", "finetune"), ("vllm_config", "actor"), ("finetune.rl", "llm")),
    launches=re.compile(r"\bpipelinerl\.(launch|entrypoints)\b"),
    known_keys={f"{name}.parameters": SAMPLING for name in ("llm", "test_llm")},
    finish=_finish,
    ports=(("world.actor_group_port", ""),),
)
