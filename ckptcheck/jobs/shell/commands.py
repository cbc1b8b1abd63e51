"""Suggests the commands that check a job on the real engine and trainer, beyond what its configuration shows."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ckptcheck.jobs.job import Job
from ckptcheck.jobs.live_arguments import (
    ENGINES,
    Arguments,
    choose_trainer,
    list_dtype,
    list_record_arguments,
    list_refit_arguments,
    list_score_arguments,
)

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
            options += ["--set", f"{name.replace('_', '-')}={'on' if value is True else value}"]
        elif value is True:
            options.append(flag)
        elif isinstance(value, list):
            options += [word for item in value for word in (flag, item)]
        else:
            options += [flag, f"{value:g}" if isinstance(value, (int, float)) else value]
    return options


def _line(*words: str) -> str:
    return shlex.join(["ckptcheck", *words])
