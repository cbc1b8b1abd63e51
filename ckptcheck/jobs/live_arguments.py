"""The arguments with which the live verbs check a job, and the commands that a report suggests: ``refit``, ``parity``, ``gate``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

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
    if (clears_cache := job.flag("update.clears_cache")) is not None:
        arguments["clear_cache"] = clears_cache
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


DUMPS = ("0_dump_path/update_actor", "0_dump_path/generate_sequences")
"""The trainer's and the engine's dump, where the guide of verl and msProbe puts them."""

SETTINGS = ("clear_cache",)
"""Arguments that the command line takes by --set."""
SUGGESTIONS = "Then, on the real engine and trainer"
"""Title of the section with the commands."""


def suggest_commands(job: Job, arguments: Sequence[str] = ()) -> list[str]:
    """Return shell lines for this job's refit check and parity check. Comments name the settings that they leave out.

    arguments: the job as the user named it, where `ckptcheck gate` can read it so, which runs both checks; else each has its line.
    """
    model = job.text("checkpoint.model")
    if model is None or job.engine not in ENGINES:
        return []
    source, lines = _source(job, model)
    has_trainer = job.text("trainer.backend") is not None
    if job.flag("trainer.lora") and not job.flag("update.merges_lora"):
        options = _options({"engine": job.engine, **list_dtype(job)})
        lines += ["# ./adapter: one that the job saved", _line("refit", "lora", source, "./adapter", *options)]
    if arguments and has_trainer:
        checkpoint = job.checkpoints.get("checkpoint.model")
        is_elsewhere = checkpoint is not None and checkpoint.reason and source != model
        lines.append(_line("gate", *arguments, *(["--model", source] if is_elsewhere else [])))
    else:
        lines += _list_each(job, source, has_trainer=has_trainer)
    if job.flag("dump.on"):
        lines.append(_line("parity", "localize", source, "--dumps", *DUMPS, *_options(list_dtype(job))))
    return lines


def _list_each(job: Job, source: str, *, has_trainer: bool) -> list[str]:
    """Return a shell line for each step of the checks. source: the checkpoint's path."""
    lines = []
    if has_trainer:
        lines.append(_line("refit", source, *_options(list_refit_arguments(job))))
    if job.number("trainer.cp") and (job.number("trainer.cp") or 1) > 1 and choose_trainer(job) == "megatron":
        lines.append("# context parallelism is left out: it moves no weights")
    lines.append(_line("parity", "record", source, *_options(list_record_arguments(job)), "-o", "rollouts.safetensors"))
    if has_trainer:
        options = _options(list_score_arguments(job))
        lines.append(_line("parity", "score", "rollouts.safetensors", source, *options, "-o", "scored.safetensors"))
        lines.append(_line("parity", "judge", "scored.safetensors"))
    return lines


def _source(job: Job, model: str) -> tuple[str, list[str]]:
    """Return (path of the checkpoint, shell lines that come first: the download of a checkpoint that is on the Hub)."""
    checkpoint = job.checkpoints.get("checkpoint.model")
    if checkpoint is None or not checkpoint.reason:
        return (checkpoint.path if checkpoint else model), []
    if "is on the Hub" in checkpoint.reason:
        folder = f"./{model.rpartition('/')[2]}"
        return folder, [shlex.join(["hf", "download", model, "--local-dir", folder])]
    return model, [f"# {' '.join(checkpoint.reason.split())}"]


def _options(arguments: Arguments) -> list[str]:
    """Return arguments as command-line options."""
    options: list[str] = []
    for name, value in arguments.items():
        flag = "--trainer-head-fp32" if name == "head_fp32" else f"--{name.replace('_', '-')}"
        if name in SETTINGS:
            options += [
                "--set",
                f"{name.replace('_', '-')}={'on' if value is True else 'off' if value is False else value}",
            ]
        elif value is True:
            options.append(flag)
        elif isinstance(value, list):
            options += [word for item in value for word in (flag, item)]
        else:
            options += [flag, f"{value:g}" if isinstance(value, (int, float)) else value]
    return options


def _line(*words: str) -> str:
    return shlex.join(["ckptcheck", *words])
