"""Plans the calls of each stage of a gate, from the settings of the job."""

from __future__ import annotations

import difflib
import inspect
import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptcheck.checkpoint.document import clip
from ckptcheck.errors import CkptcheckError
from ckptcheck.framework_folders import find_framework_data, list_frameworks_with, load_framework_file
from ckptcheck.jobs.files import SHELL
from ckptcheck.jobs.first_step import FirstStep
from ckptcheck.jobs.job import Job, NamedCheckpoint
from ckptcheck.jobs.launch import OVERRIDE
from ckptcheck.jobs.live_arguments import (
    ENGINES,
    list_record_arguments,
    list_refit_arguments,
    list_score_arguments,
    resolve_engine_dtype,
)
from ckptcheck.jobs.open_job import list_frameworks, split_variables
from ckptcheck.live.gate.gate_file import FIRST_STEP, GateRequest
from ckptcheck.live.gate.launch_words import write_shell_file
from ckptcheck.text.addresses import is_remote_address
from ckptcheck.text.formatting import join_words

FUNCTIONS = {
    "preflight": ("preflight",),
    "scan": ("scan",),
    "refit": ("refit",),
    "parity": ("record_rollouts", "score_rollouts", "judge"),
    "first-step": (),
}
"""Stage → the functions of `ckptcheck.verbs` that it calls, in their order."""
OWN = ("observer", "output", "baseline", "write_baseline", "fix", "stats", "pictures", "record")
"""Arguments that a gate sets itself, or that write elsewhere."""


ELSEWHERE = ("ssh", "pdsh", "sbatch", "ray", "docker", "podman", "apptainer", "singularity", "kubectl", "sudo")
"""Programs whose inner command does not get this shell's variables, so that it would run for more than one step."""


@dataclass(frozen=True)
class Call:
    """A call of one function of `ckptcheck.verbs`."""

    function: str
    arguments: Mapping[str, Any]
    """Keyword arguments as JSON can hold them; ``*`` holds the positional ones."""


@dataclass(frozen=True)
class Stage:
    """The calls of one stage of a gate."""

    name: str
    calls: tuple[Call, ...] = ()
    cannot: str = ""
    """Why the stage cannot check the job, or not all of it; "" if it can."""


def check_options(request: GateRequest, functions: Mapping[str, Callable[..., Any]]) -> None:
    """Raise CkptcheckError for an argument that no function of its stage takes. functions: name → function of `ckptcheck.verbs`."""
    for stage, options in request.options.items():
        known = {name for function in FUNCTIONS[stage] for name in _list_names(functions[function])} - {*OWN}
        known |= {"command"} if stage == FIRST_STEP else set()
        command = options.get("command", "") if stage == FIRST_STEP else ""
        if not isinstance(command, str) and not (
            isinstance(command, list) and command and all(isinstance(word, str) for word in command)
        ):
            raise CkptcheckError(f"[{stage}] command is not a command line", hint='write it as a string: "bash run.sh"')
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, sorted(known), 1)
                raise CkptcheckError(
                    f"[{stage}] takes no {clip(name.replace('_', '-'))}"
                    + (f"; did you mean {near[0].replace('_', '-')}?" if near else ""),
                    hint=f"it takes the options of {join_words([f'ckptcheck.{name}' for name in FUNCTIONS[stage]])}"
                    if FUNCTIONS[stage]
                    else f"it takes {join_words(sorted(known))}",
                )


def plan_stages(
    job: Job, request: GateRequest, functions: Mapping[str, Callable[..., Any]], folder: Path
) -> tuple[Stage, ...]:
    """Return the requested stages after preflight. folder: for files that one call writes and a later one reads."""
    plan = {"scan": _plan_scan, "refit": _plan_refit, "parity": _plan_parity, FIRST_STEP: _plan_first_step}
    return tuple(plan[name](job, request, functions, folder) for name in request.stages if name in plan)


def _plan_scan(job: Job, request: GateRequest, functions: Mapping[str, Callable[..., Any]], folder: Path) -> Stage:
    model = job.checkpoints.get("checkpoint.model")
    named = [checkpoint for checkpoint in job.checkpoints.values() if request.model is None or checkpoint != model]
    found = [checkpoint.path for checkpoint in named if not checkpoint.reason]
    missing = [_explain_missing(job, checkpoint) for checkpoint in named if checkpoint.reason]
    targets = list(dict.fromkeys([*([request.model] if request.model else []), *found]))
    cannot = missing[0] if missing else "" if targets else "the job names no checkpoint"
    if not targets:
        return Stage("scan", cannot=cannot)
    arguments = {"*": [targets], **request.options.get("scan", {})}
    return Stage("scan", (Call("scan", arguments),), cannot)


def _plan_refit(job: Job, request: GateRequest, functions: Mapping[str, Callable[..., Any]], folder: Path) -> Stage:
    source, cannot = _find_source(job, request)
    if cannot:
        return Stage("refit", cannot=cannot)
    options, of_job = request.options.get("refit", {}), list_refit_arguments(job)
    if not options.get("check_logprobs", True):
        of_job.pop("clear_cache", None)  # only the scores depend on the cache
    return Stage("refit", (Call("refit", {"*": [source], **of_job, **options}),))


def _plan_parity(job: Job, request: GateRequest, functions: Mapping[str, Callable[..., Any]], folder: Path) -> Stage:
    source, cannot = _find_source(job, request)
    if cannot:
        return Stage("parity", cannot=cannot)
    rollouts, scored = folder / "rollouts.safetensors", folder / "scored.safetensors"
    record, score, judge = (_take_arguments(job, request, functions, name) for name in FUNCTIONS["parity"])
    return Stage(
        "parity",
        (
            Call("record_rollouts", {**record, "*": [source, str(rollouts)]}),
            Call("score_rollouts", {**score, "*": [str(rollouts), source, str(scored)]}),
            Call("judge", {**judge, "*": [str(scored)]}),
        ),
    )


def _plan_first_step(
    job: Job, request: GateRequest, functions: Mapping[str, Callable[..., Any]], folder: Path
) -> Stage:
    names = [word for word in request.job if not OVERRIDE.fullmatch(word) or os.path.exists(word)]
    overrides = [word for word in request.job if word not in names]
    reader = list_frameworks()[job.reader]
    if job.reader.replace("-", "_") not in list_frameworks_with("first_step"):
        reads_log = job.reader in list_frameworks_with("printed_steps")
        log = "; start it, and ckptcheck refit history LOG judges what it prints" if reads_log else ""
        return Stage(FIRST_STEP, cannot=f"ckptcheck does not know how {job.framework} runs for one step{log}")
    first_step: FirstStep = load_framework_file(job.reader.replace("-", "_"), "first_step").FIRST_STEP
    command, launch, cannot = _find_command(job, names, request, first_step)
    if cannot:
        return Stage(FIRST_STEP, cannot=cannot)
    place = folder.absolute() / FIRST_STEP
    words = overrides if reader.style == "hydra" else [f"--{word}" for word in overrides]
    words += first_step.write_words(reader.style, str(place / "output"))
    before: list[str] = []
    if job.is_in_code:
        runner = find_framework_data(job.reader, "first_step_script.py")
        if runner is None:
            return Stage(
                FIRST_STEP,
                cannot=f"{names[0]} makes its configuration in Python, and has no option for a run of one step",
            )
        before, words = [str(runner), json.dumps(first_step.fill_in(str(place / "output")))], []
    if launch and job.sender in ELSEWHERE:
        return Stage(FIRST_STEP, cannot=f"{names[0]} gives the job to another machine or container, by {job.sender}")
    if launch and not write_shell_file(launch, words, ""):
        line = clip(" ".join(launch))
        return Stage(FIRST_STEP, cannot=f"which program starts the job is not known before {names[0]} runs: {line}")
    arguments = {
        "target": request.job[0], "framework": job.framework, "reader": job.reader, "command": command, "words": words,
        "launch": launch, "before": before, "folder": str(place), "python_path": os.environ.get("PYTHONPATH"),
        "dtypes": [job.text("trainer.dtype"), resolve_engine_dtype(job)],
        "variables": {name: value for name, value in _list_variables(request).items() if not name.isdigit()},
    }  # fmt: skip
    return Stage(FIRST_STEP, (Call("first_step", arguments),))


def _list_variables(request: GateRequest) -> dict[str, str]:
    """Return the variables, and the arguments of its script by their numbers, that the gate file says the job takes."""
    given = request.options.get("preflight", {}).get("env", ())
    return split_variables([given] if isinstance(given, str) else given)


def _find_command(
    job: Job, names: Sequence[str], request: GateRequest, first_step: FirstStep
) -> tuple[list[str], list[str], str]:
    """Return (the command that runs the job, the words of a script's line that starts it, why there is no command)."""
    file = names[0]
    is_script = Path(file).suffix in SHELL
    if (command := request.options.get(FIRST_STEP, {}).get("command")) is not None:
        if isinstance(command, str):
            command = shlex.split(command)
        # a command that runs the script starts the job by the script's own line
        runs_script = is_script and any(os.path.basename(word) == os.path.basename(file) for word in command)
        return list(command), list(job.launch) if runs_script else [], ""
    if is_script:
        arguments = sorted((int(name), value) for name, value in _list_variables(request).items() if name.isdigit())
        return ["bash", file, *(value for _, value in arguments)], list(job.launch), ""
    if file.endswith(".py"):
        return ["python" if shutil.which("python") else "python3", file], [], ""
    if first_step.program and len(names) == 1:
        return [*first_step.program, file], [], ""
    return [], [], f"{file} is a configuration: name the script that starts the job, or command in [{FIRST_STEP}]"


def _take_arguments(
    job: Job, request: GateRequest, functions: Mapping[str, Callable[..., Any]], function: str
) -> dict[str, Any]:
    """Return the arguments of a function of parity: from the job, and the gate file's that the function takes."""
    of_job = {"record_rollouts": list_record_arguments, "score_rollouts": list_score_arguments}
    names = _list_names(functions[function])
    options = {name: value for name, value in request.options.get("parity", {}).items() if name in names}
    return {**(of_job[function](job) if function in of_job else {}), **options}


def _find_model(job: Job) -> str | None:
    """Return the path of the model that the engine starts from; None if it is not on this machine."""
    checkpoint = job.checkpoints.get("checkpoint.model")
    return None if checkpoint is None or checkpoint.reason else checkpoint.path


def _find_source(job: Job, request: GateRequest) -> tuple[str, str]:
    """Return (path of the model, why engine and trainer cannot be checked; "" if they can)."""
    if job.engine not in ENGINES:
        return "", f"the job's engine is {job.engine}, not vllm or sglang" if job.engine else "no engine is known"
    if job.text("trainer.backend") is None:
        return "", "no trainer is known"
    source = request.model or _find_model(job)
    if source is None:
        checkpoint = job.checkpoints.get("checkpoint.model")
        return "", _explain_missing(job, checkpoint) if checkpoint is not None else "the job names no model"
    if is_remote_address(source):
        return "", f"{source} is not on this machine, and engine and trainer load their model from disk"
    return source, ""


def _explain_missing(job: Job, checkpoint: NamedCheckpoint) -> str:
    """Return why a checkpoint of the job cannot be read; with a hint if it is the model, missing only here."""
    if checkpoint != job.checkpoints.get("checkpoint.model") or checkpoint.path:
        return checkpoint.reason
    reason = checkpoint.reason.partition(": ckptcheck scan ")[0]
    return f"{reason}; name a copy on this machine with --model, or with model in the gate file"


def _list_names(function: Callable[..., Any]) -> Sequence[str]:
    """Return the names of the keyword arguments of a function."""
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
