"""PipelineRL: Hydra's YAML (conf/base.yaml and what builds on it).

Names and defaults: conf/ of ServiceNow/PipelineRL, and the account of its move to vLLM V1
(https://huggingface.co/blog/ServiceNow-AI/correctness-before-corrections): the engine's logprobs are the old logprobs of
its ratio; weights change in flight, with ``pause_generation(mode="keep", clear_cache=False)``.
"""

from __future__ import annotations

import re

from ckptcheck.preflight.document import Document
from ckptcheck.preflight.engine_flags import arguments_below, take
from ckptcheck.preflight.framework import Framework, Source, default, set_to
from ckptcheck.preflight.interpolation import look
from ckptcheck.preflight.job import Job, Setting

PIPELINE = "PipelineRL"


def _dtype(value: object) -> object:
    return "bfloat16" if value is True else None


SOURCES = {
    "trainer.dtype": Source(("finetune.load_as_bf16",), read=_dtype),
    "trainer.temperature": Source(("finetune.rl.temperature", "llm.parameters.temperature")),
    "trainer.filters": Source((), False, PIPELINE),
    "trainer.fp32_head": Source(("finetune.fp32_lm_head", "fp32_lm_head")),
    "trainer.max_length": Source(("finetune.seq_length",)),
    "engine.name": Source((), "vllm", PIPELINE),
    "rollout.temperature": Source(("llm.parameters.temperature",), 1.0, PIPELINE),
    "rollout.top_p": Source(("llm.parameters.top_p",), 1.0, PIPELINE),
    "rollout.top_k": Source(("llm.parameters.top_k",), -1, PIPELINE),
    "rollout.response_length": Source(("llm.parameters.max_tokens",)),
    "rollout.n": Source(("attempts",)),
    "rollout.logprobs": Source((), True, PIPELINE),
    "update.in_flight": Source((), True, PIPELINE),
    "update.pause_mode": Source((), "keep", PIPELINE),
    "update.clears_cache": Source((), False, PIPELINE),
    "algorithm.uses_rollout_logprobs": Source((), True, PIPELINE),
    "algorithm.correction": Source((), "policy ratio", PIPELINE),
    "algorithm.lag": Source(("finetune.max_lag", "max_lag")),
    "checkpoint.model": Source(("model_path", "finetune.config_name")),
}
V0 = "vLLM V0 (use_v1: false)"


def _finish(job: Job, document: Document) -> None:
    for key, backend in (("use_deepspeed", "deepspeed"), ("use_fsdp", "fsdp")):
        found = look(document, key)
        if found is not None and found.value is True:
            job.settings["trainer.backend"] = Setting(backend, "set", "", found.leaf)
    arguments = arguments_below(document.leaves, lambda path: look(document, path), "vllm_config.vllm_kwargs")
    take(job, "vllm", arguments, beside=frozenset(("return_tokens_as_token_ids",)))
    _version_of_engine(job, document)
    head = look(document, "vllm_config.quantization")
    if head is not None and head.value == "bf16_last_layer_fp32":
        job.settings["engine.fp32_head"] = Setting(True, "set", "", head.leaf)
    elif (both := look(document, "fp32_lm_head")) is not None and isinstance(both.value, bool):
        job.settings.setdefault("engine.fp32_head", Setting(both.value, "set", "", both.leaf))
    if job["algorithm.lag"].status == "unknown":
        leaf = next((document.leaves[key] for key in ("finetune.max_lag", "max_lag") if key in document.leaves), None)
        job.settings["algorithm.unbounded_lag"] = Setting(
            True, "set" if leaf else "default", f"default of {PIPELINE}", leaf
        )


def _version_of_engine(job: Job, document: Document) -> None:
    """V0 returns logprobs after temperature and the filters, and has no prefix cache unless it is asked for."""
    found = look(document, "vllm_config.use_v1")
    if found is None:
        if job["engine.logprobs"].status == "unknown":
            leaf = next(iter(document.leaves.values()))
            job.settings["engine.logprobs"] = Setting(
                None, "unresolved", "vllm_config.use_v1 is not written in it", leaf
            )
        return
    if found.value is False:
        like = Setting(None, "set", "", found.leaf)
        for name, value in (
            ("engine.prefix_caching", False),
            ("engine.async_scheduling", False),
            ("engine.cascade_attention", False),
        ):
            default(job, name, value, V0)
        if job["engine.logprobs"].status == "unknown":
            set_to(job, "engine.logprobs", "processed", like)


FRAMEWORK = Framework(
    name="pipelinerl",
    title=PIPELINE,
    style="hydra",
    sources=SOURCES,
    signs=(("vllm_config", "finetune"), ("vllm_config", "actor"), ("finetune.rl", "llm")),
    launches=re.compile(r"\bpipelinerl\.(launch|entrypoints)\b"),
    finish=_finish,
)
