"""Reads the launch line of SGLang without a trainer."""

from __future__ import annotations

import re

from ckptcheck.jobs.document import Document
from ckptcheck.jobs.engine_flags import finish_engine_job
from ckptcheck.jobs.framework import FieldSource, Framework, environment_flag, set_derived
from ckptcheck.jobs.job import Job


def _finish(job: Job, document: Document) -> None:
    finish_engine_job(job, document, "sglang")
    raw = environment_flag(document, "SGLANG_RETURN_ORIGINAL_LOGPROB")
    if raw.is_known and raw.value is True:
        set_derived(job, "engine.logprobs", "raw", raw)


FRAMEWORK = Framework(
    name="sglang",
    title="SGLang",
    style="flags",
    sources={"checkpoint.model": FieldSource(("model_path", "model"))},
    launches=re.compile(r"\bsglang\.launch_server\b|\bsglang\s+serve\b"),
    finish=_finish,
    ports=(("port", ""),),
    is_engine=True,
)
