"""Reads the launch line of an engine without a trainer: ``vllm serve MODEL …`` or ``python -m sglang.launch_server …``."""

from __future__ import annotations

import re

from ckptcheck.jobs.document import Document
from ckptcheck.jobs.engine_flags import apply_engine_arguments
from ckptcheck.jobs.framework import FieldSource, Framework, environment_flag, set_default, set_derived, split_names
from ckptcheck.jobs.interpolation import resolve
from ckptcheck.jobs.job import Job, Setting

BESIDE = split_names("model_tag model_name api_key config vllm_model_impl log_level")
"""Options that are none of the engine's; the last two are those of ``trl vllm-serve``."""


def _vllm(job: Job, document: Document) -> None:
    _finish(job, document, "vllm")
    if "trl" in document.script.split():
        set_default(job, "engine.logprobs", "processed", "trl vllm-serve")


def _sglang(job: Job, document: Document) -> None:
    _finish(job, document, "sglang")
    raw = environment_flag(document, "SGLANG_RETURN_ORIGINAL_LOGPROB")
    if raw.is_known and raw.value is True:
        set_derived(job, "engine.logprobs", "raw", raw)


def _finish(job: Job, document: Document, engine: str) -> None:
    """Set the engine's name and its arguments. engine: vllm or sglang."""
    job.settings["engine.name"] = Setting(engine, "default", "the launch line")
    arguments = {name: resolved for name in document.leaves if (resolved := resolve(document, name)) is not None}
    apply_engine_arguments(job, engine, arguments, beside=BESIDE)


VLLM = Framework(
    name="vllm",
    title="vLLM",
    style="flags",
    sources={"checkpoint.model": FieldSource(("model_tag", "model"))},
    launches=re.compile(r"\bvllm\s+serve\b|\btrl\s+vllm-serve\b|\bvllm\.entrypoints\.openai\.api_server\b"),
    finish=_vllm,
)
SGLANG = Framework(
    name="sglang",
    title="SGLang",
    style="flags",
    sources={"checkpoint.model": FieldSource(("model_path", "model"))},
    launches=re.compile(r"\bsglang\.launch_server\b|\bsglang\s+serve\b"),
    finish=_sglang,
)
