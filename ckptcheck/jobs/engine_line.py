"""Reads the launch line of an engine without a trainer: ``vllm serve MODEL …`` or ``python -m sglang.launch_server …``."""

from __future__ import annotations

from ckptcheck.jobs.document import Document
from ckptcheck.jobs.engine_flags import apply_engine_arguments
from ckptcheck.jobs.framework import split_names
from ckptcheck.jobs.interpolation import resolve
from ckptcheck.jobs.job import Job, Setting

BESIDE = split_names("model_tag model_name api_key config vllm_model_impl log_level")
"""Options that are none of the engine's; the last two are those of ``trl vllm-serve``."""


def finish_engine_job(job: Job, document: Document, engine: str) -> None:
    """Set the engine's name and its arguments. engine: vllm or sglang."""
    job.settings["engine.name"] = Setting(engine, "default", "the launch line")
    arguments = {name: resolved for name in document.leaves if (resolved := resolve(document, name)) is not None}
    apply_engine_arguments(job, engine, arguments, beside=BESIDE)
