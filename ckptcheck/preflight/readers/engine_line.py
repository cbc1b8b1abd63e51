"""A plain launch line of an engine: ``vllm serve MODEL …`` or ``python -m sglang.launch_server …``."""

from __future__ import annotations

import re

from ckptcheck.preflight.document import Document
from ckptcheck.preflight.engine_flags import take
from ckptcheck.preflight.framework import Framework, Source, environment_flag, set_to
from ckptcheck.preflight.interpolation import look
from ckptcheck.preflight.job import Job, Setting


def _vllm(job: Job, document: Document) -> None:
    _finish(job, document, "vllm")


def _sglang(job: Job, document: Document) -> None:
    _finish(job, document, "sglang")
    raw = environment_flag(document, "SGLANG_RETURN_ORIGINAL_LOGPROB")
    if raw.known and raw.value is True:
        set_to(job, "engine.logprobs", "raw", raw)


def _finish(job: Job, document: Document, engine: str) -> None:
    job.settings["engine.name"] = Setting(engine, "default", "the launch line")
    arguments = {name: found for name in document.leaves if (found := look(document, name)) is not None}
    take(job, engine, arguments, beside=frozenset(("model_tag", "model_name", "api_key", "config")))


VLLM = Framework(
    name="vllm",
    title="vLLM",
    style="flags",
    sources={"checkpoint.model": Source(("model_tag", "model"))},
    launches=re.compile(r"\bvllm\s+serve\b|\bvllm\.entrypoints\.openai\.api_server\b"),
    finish=_vllm,
)
SGLANG = Framework(
    name="sglang",
    title="SGLang",
    style="flags",
    sources={"checkpoint.model": Source(("model_path", "model"))},
    launches=re.compile(r"\bsglang\.launch_server\b|\bsglang\s+serve\b"),
    finish=_sglang,
)
