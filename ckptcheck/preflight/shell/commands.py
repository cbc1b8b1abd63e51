"""Suggests the commands that check a job on the real engine and trainer, beyond what its configuration shows."""

from __future__ import annotations

import shlex

from ckptcheck.preflight.job import Job

ENGINES = ("vllm", "sglang")
TRAINERS = {"megatron": "megatron"}
"""Training backend of the job → value of ``--trainer``; for any other backend it is transformers."""
SWITCHES = {
    "prefix_cache": "engine.prefix_caching",
    "async_scheduling": "engine.async_scheduling",
    "chunked_prefill": "engine.chunked_prefill",
    "head_fp32": "engine.fp32_head",
}
"""``--switch`` of ``parity record`` → the job's setting that it repeats."""
DUMPS = ("0_dump_path/update_actor", "0_dump_path/generate_sequences")
"""The trainer's and the engine's dump, where the guide of verl and msProbe puts them."""
DTYPES = ("float32", "bfloat16")


def suggest_commands(job: Job) -> list[str]:
    """Return shell lines for this job's refit check and parity check. Comment lines name what the checks leave out."""
    model = job.text("checkpoint.model")
    if model is None or job.engine not in ENGINES:
        return []
    source, lines = _source(job, model)
    trainer = TRAINERS.get(job.text("trainer.backend") or "", "transformers")
    dtype = job.text("trainer.dtype")
    layout = (
        _options(job, {"--tp": "trainer.tp", "--pp": "trainer.pp", "--ep": "trainer.ep"})
        if trainer == "megatron"
        else []
    )
    engine = ["--engine", job.engine, *_options(job, {"--engine-tp": "engine.tp"})]
    precision = ["--dtype", dtype] if dtype in DTYPES else []
    if job.text("trainer.backend") is not None:
        lines.append(_line("refit", source, "--trainer", trainer, *layout, *engine, *precision))
    if job.number("trainer.cp") and (job.number("trainer.cp") or 1) > 1 and trainer == "megatron":
        lines.append("# context parallelism is left out: it moves no weights")
    settings = (*_sampling(job), *_switches(job), "-o", "rollouts.safetensors")
    lines.append(_line("parity", "record", source, *engine, *precision, *settings))
    if job.text("trainer.backend") is not None:
        head = ["--trainer-head-fp32"] if job.flag("trainer.fp32_head") else []
        options = ("--trainer", trainer, *layout, *precision, *head, "-o", "scored.safetensors")
        lines.append(_line("parity", "score", "rollouts.safetensors", source, *options))
        lines.append(_line("parity", "judge", "scored.safetensors"))
    if job.flag("dump.on"):
        lines.append(_line("parity", "localize", source, "--dumps", *DUMPS, *precision))
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


def _options(job: Job, names: dict[str, str]) -> list[str]:
    """Return the command-line options for number settings other than 1. names: option → setting."""
    options = []
    for option, name in names.items():
        number = job.number(name)
        if number is not None and number != 1:
            options += [option, f"{number:g}"]
    return options


def _sampling(job: Job) -> list[str]:
    """Return the options that repeat the job's sampling parameters."""
    top_k = job.number("rollout.top_k") or 0
    return _options(job, {"--temperature": "rollout.temperature", "--top-p": "rollout.top_p"}) + (
        ["--top-k", f"{top_k:g}"] if top_k > 0 else []
    )


def _switches(job: Job) -> list[str]:
    """Return ``--switch`` options that set up the engine as the job does, in place of the check's own defaults."""
    switches = [("logprobs", job.text("engine.logprobs"))]
    for name, field in SWITCHES.items():
        setting = job.flag(field)
        switches.append((name, None if setting is None else "on" if setting else "off"))
    return [word for name, value in switches if value is not None for word in ("--switch", f"{name}={value}")]


def _line(*words: str) -> str:
    return shlex.join(["ckptcheck", *words])
