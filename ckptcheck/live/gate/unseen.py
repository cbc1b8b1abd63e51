"""Says what a gate does not see of a job: the stages refit and parity run a trainer and an engine of ckptcheck's own."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ckptcheck.framework_folders import list_frameworks_with
from ckptcheck.jobs.job import Job
from ckptcheck.jobs.live_arguments import DTYPES, choose_trainer, find_dtypes, resolve_engine_dtype
from ckptcheck.live.gate.gate_file import FIRST_STEP
from ckptcheck.text.formatting import join_words

OWN_TRIALS = ("refit", "parity")
"""The stages with a trainer and an engine that are not the job's."""
USUAL = {
    "trainer.lora": (False,),
    "trainer.cp": (1,),
    "trainer.fp8": (False,),
    "trainer.router_replay": ("none",),
    "engine.quantization": ("none",),
    "engine.kv_cache_dtype": ("auto",),
    "engine.draft": (False,),
    "engine.lora": (False,),
    "engine.deterministic": (False,),
    "engine.load_format": ("auto",),
    "update.mode": ("full",),
    "update.quantizes": (False,),
    "update.in_flight": (False,),
    "rollout.min_p": (0,),
}
"""Setting of a job that no trial repeats → the values with which it changes nothing."""


def describe_unseen(job: Job, ran: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each thing of the job that its stages do not run as the job does. ran: the stages that ran."""
    own = [stage for stage in OWN_TRIALS if stage in ran]
    if not own:
        return
    trainer = choose_trainer(job)
    backend = job.text("trainer.backend")
    played = "" if backend in (None, trainer) else f" in place of {backend}"
    if FIRST_STEP in ran:
        rest = "; first-step did"
    else:
        rest = "; --first-step runs them" if job.reader.replace("-", "_") in list_frameworks_with("first_step") else ""
    yield (
        f"{join_words(own)} started a trainer ({trainer}{played}) and {job.engine} of ckptcheck's own: {job.framework}'s processes,"
        f" its own sync and its loss did not run{rest}"
    )
    yield from _describe_dtypes(job)
    unusual = [name for name, usual in USUAL.items() if job[name].is_known and job[name].value not in usual]
    if unusual:
        yield f"not repeated: {', '.join(f'{name} {job.describe(name)}' for name in unusual)}"


def _describe_dtypes(job: Job) -> Iterator[str]:
    """Say where a side did not compute in the job's dtype, or where that is not known."""
    for side, dtype, used in zip(
        ("trainer", "engine"), (job.text("trainer.dtype"), resolve_engine_dtype(job)), find_dtypes(job), strict=True
    ):
        tried = used or DTYPES[0]
        if dtype is None:
            yield f"the dtype of the job's {side} is not known, {tried} was tried"
        elif dtype != tried:
            yield f"the job's {side} computes in {dtype}, {tried} was tried"
