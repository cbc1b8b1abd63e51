"""The arguments with which the live verbs check a job, and the commands that a report suggests: ``refit``, ``parity``, ``gate``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ckptcheck.framework_folders import list_frameworks_with
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
AUTO = {"vllm": "bfloat16", "sglang": "float16"}
"""Engine → in what its dtype ``auto`` computes where the checkpoint is stored in float32: the first dtype of the device
(vLLM 0.32.0, `_resolve_auto_dtype`), and float16 but for Gemma (SGLang 0.5.23, configs/model_config.py)."""
PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Argument of ``parity record`` and setting of the rollout → the value that changes nothing."""
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
    dtype = find_dtypes(job)[1]
    arguments = {**_list_engine(job), **({"dtype": dtype} if dtype else {})}
    arguments |= _list_numbers(job, {"temperature": "rollout.temperature", "top_p": "rollout.top_p"})
    for name, neutral in PENALTIES.items():
        if (penalty := job.number(f"rollout.{name}")) is not None and penalty != neutral:
            arguments[name] = penalty
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
    arguments: Arguments = {"trainer": choose_trainer(job), **_list_layout(job), **_list_trainer_dtype(job)}
    if job.flag("trainer.fp32_head"):
        arguments["head_fp32"] = True
    return arguments


def choose_trainer(job: Job) -> str:
    """Return the trainer that plays the job's."""
    return TRAINERS.get(job.text("trainer.backend") or "", "transformers")


def list_dtype(job: Job) -> Arguments:
    """Return the dtype of both sides as ``refit`` takes it, the engine's by itself where it is another."""
    trainer, engine = find_dtypes(job)
    arguments: Arguments = {"dtype": trainer} if trainer else {}
    return arguments | ({"engine_dtype": engine} if engine and engine != trainer else {})


def _list_trainer_dtype(job: Job) -> Arguments:
    return {"dtype": dtype} if (dtype := find_dtypes(job)[0]) else {}


def find_dtypes(job: Job) -> tuple[str | None, str | None]:
    """Return the dtypes in which trainer and engine compute, each that of the other side where it is not known.

    None: neither is known, or the side computes in one that the live verbs do not take (float16).
    """
    trainer, engine = job.text("trainer.dtype"), resolve_engine_dtype(job)
    known = trainer or engine, engine or trainer
    return known[0] if known[0] in DTYPES else None, known[1] if known[1] in DTYPES else None


def resolve_engine_dtype(job: Job) -> str | None:
    """Return the dtype in which the job's engine computes: for ``auto`` by the checkpoint, where that is on this machine."""
    dtype = job.text("engine.dtype")
    if dtype != "auto":
        return dtype
    checkpoint = job.checkpoints.get("checkpoint.model")
    stored = checkpoint.dtype if checkpoint is not None else None
    return AUTO.get(job.engine) if stored == "float32" else stored


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

SETTINGS = ("clear_cache", "engine_dtype")
"""Arguments that the command line takes by --set."""
GRAPHS_OFF = {"vllm": "--enforce-eager", "sglang": "--disable-cuda-graph"}
MEMORY_FAULT = "If the engine dies of an illegal memory access, change one of these"
"""Title of the section that slime's debugging guide asks for."""
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
        options = _options({"engine": job.engine, **_list_trainer_dtype(job)})
        lines += ["# ./adapter: one that the job saved", _line("refit", "lora", source, "./adapter", *options)]
    if arguments and has_trainer:
        checkpoint = job.checkpoints.get("checkpoint.model")
        is_elsewhere = checkpoint is not None and checkpoint.reason and source != model
        lines.append(_line("gate", *arguments, *(["--model", source] if is_elsewhere else [])))
    else:
        lines += _list_each(job, source, has_trainer=has_trainer)
    if job.flag("update.in_flight"):
        options = _options({"engine": job.engine, **list_dtype(job)})
        lines.append(_line("parity", "probe", source, *options, "--only", "inflight"))
    if job.flag("critic.enabled") and job.text("critic.backend") == "megatron":
        named = job.text("checkpoint.critic")
        critic, first = (source, []) if named in (None, model) else _source(job, named or "", "checkpoint.critic")
        lines += [*first, _line("critic", critic)]
    if job.flag("dump.on"):
        # seed_all of the guide stands in the worker's code, which no job file shows
        if lacking := [name for name in ("trainer", "engine") if not job.flag(f"{name}.deterministic")]:
            lines.append(
                f"# dump with seed_all(mode=True), as the guide does: the job sets no deterministic kernels for the"
                f" {' and the '.join(lacking)}"
            )
        lines.append(_line("parity", "localize", source, "--dumps", *DUMPS, *_options(_list_trainer_dtype(job))))
    if job.reader in list_frameworks_with("printed_steps"):
        lines.append(f"{_line('refit', 'history', 'train.log')}  # what the job prints")
    return lines


def isolate_memory_fault(job: Job) -> list[str]:
    """Return what to change in this job to find the kernel that accesses memory which is not its own; [] for other engines."""
    if job.engine not in GRAPHS_OFF:
        return []
    off, graphs, draft = GRAPHS_OFF[job.engine], job["engine.graphs"], job["engine.draft"]
    is_eager = graphs.value is False
    found = [
        f"environment: CUDA_LAUNCH_BLOCKING=1{'' if is_eager else f' with {off}'}: the Python stack then names the kernel",
        f"CUDA graphs: off ({graphs.place}); turn them on" if is_eager else f"CUDA graphs: on unless {off}",
        f"speculation: on ({draft.place}); turn it off"
        if draft.value
        else "speculation: off; turn it on where there is a draft",
    ]
    if "deepep" in (job.text("engine.all_to_all") or ""):
        found.append(f"DeepEP of the engine: on ({job['engine.all_to_all'].place}); turn it off")
    if job.flag("trainer.deepep"):
        found.append(f"DeepEP of the trainer: on ({job['trainer.deepep'].place}); turn it off")
    return [*found, "environment: CUDA_ENABLE_COREDUMP_ON_EXCEPTION=1 and three more (docs/refit.md): a core dump"]


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


def _source(job: Job, model: str, field: str = "checkpoint.model") -> tuple[str, list[str]]:
    """Return (path of the checkpoint, shell lines that come first: the download of a checkpoint that is on the Hub).

    model: the checkpoint as the job names it, in this field.
    """
    checkpoint = job.checkpoints.get(field)
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
