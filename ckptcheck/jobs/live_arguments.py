"""The arguments with which the live verbs check a job: ``refit``, ``parity record`` and ``parity score``."""

from __future__ import annotations

from ckptcheck.jobs.job import Job

ENGINES = ("vllm", "sglang")
TRAINERS = {"megatron": "megatron"}
"""Training backend of the job → the trainer that plays it; any other backend is played by transformers."""
SWITCHES = {
    "prefix_cache": "engine.prefix_caching",
    "async_scheduling": "engine.async_scheduling",
    "chunked_prefill": "engine.chunked_prefill",
    "head_fp32": "engine.fp32_head",
}
"""Switch of the engine → the job's setting that it repeats."""
DTYPES = ("float32", "bfloat16")
LAYOUT = {"tp": "trainer.tp", "pp": "trainer.pp", "ep": "trainer.ep"}
"""Argument of a trainer of Megatron → the job's setting."""

Arguments = dict[str, str | float | bool | list[str]]
"""Arguments of a function of `ckptcheck.verbs` by their names, in the order of its command line."""


def list_refit_arguments(job: Job) -> Arguments:
    """Return the arguments of ``refit`` beside the source."""
    arguments = {"trainer": choose_trainer(job), **_list_layout(job), **_list_engine(job), **list_dtype(job)}
    if job.flag("update.clears_cache"):
        arguments["clear_cache"] = True
    return arguments


def list_record_arguments(job: Job) -> Arguments:
    """Return the arguments of ``parity record`` beside the source: the job's sampling, on an engine set up as the job's."""
    arguments = {**_list_engine(job), **list_dtype(job)}
    arguments |= _list_numbers(job, {"temperature": "rollout.temperature", "top_p": "rollout.top_p"})
    if (top_k := job.number("rollout.top_k") or 0) > 0:
        arguments["top_k"] = _whole(top_k)
    switches = [("logprobs", job.text("engine.logprobs"))]
    for name, field in SWITCHES.items():
        setting = job.flag(field)
        switches.append((name, None if setting is None else "on" if setting else "off"))
    if written := [f"{name}={value}" for name, value in switches if value is not None]:
        arguments["switch"] = written
    return arguments


def list_score_arguments(job: Job) -> Arguments:
    """Return the arguments of ``parity score`` beside the rollouts and the source."""
    arguments: Arguments = {"trainer": choose_trainer(job), **_list_layout(job), **list_dtype(job)}
    if job.flag("trainer.fp32_head"):
        arguments["head_fp32"] = True
    return arguments


def choose_trainer(job: Job) -> str:
    """Return the trainer that plays the job's."""
    return TRAINERS.get(job.text("trainer.backend") or "", "transformers")


def list_dtype(job: Job) -> Arguments:
    """Return the dtype that trainer and engine compute in, where both can."""
    dtype = job.text("trainer.dtype")
    return {"dtype": dtype} if dtype in DTYPES else {}


def _list_layout(job: Job) -> Arguments:
    return _list_numbers(job, LAYOUT) if choose_trainer(job) == "megatron" else {}


def _list_engine(job: Job) -> Arguments:
    return {"engine": job.engine, **_list_numbers(job, {"engine_tp": "engine.tp"})}


def _list_numbers(job: Job, names: dict[str, str]) -> Arguments:
    """Return the number settings other than 1. names: argument → setting."""
    numbers = {argument: job.number(name) for argument, name in names.items()}
    return {argument: _whole(number) for argument, number in numbers.items() if number is not None and number != 1}


def _whole(number: float) -> float:
    """Return a number that has no fraction as an int, which counts of ranks have to be."""
    return int(number) if float(number).is_integer() else number
