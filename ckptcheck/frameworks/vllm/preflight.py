"""Reads the launch line of vLLM without a trainer."""

from __future__ import annotations

import re

from ckptcheck.jobs.document import Document
from ckptcheck.jobs.engine_flags import finish_engine_job
from ckptcheck.jobs.framework import FieldSource, Framework, set_default
from ckptcheck.jobs.job import Job


def _finish(job: Job, document: Document) -> None:
    finish_engine_job(job, document, "vllm")
    if "trl" in document.script.split():
        set_default(job, "engine.logprobs", "processed", "trl vllm-serve")


FRAMEWORK = Framework(
    name="vllm",
    title="vLLM",
    style="flags",
    sources={"checkpoint.model": FieldSource(("model_tag", "model"))},
    launches=re.compile(r"\bvllm\s+serve\b|\btrl\s+vllm-serve\b|\bvllm\.entrypoints\.openai\.api_server\b"),
    finish=_finish,
    ports=(("port", ""),),
    is_engine=True,
)
