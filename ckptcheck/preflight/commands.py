"""The commands that check, on the real engine and trainer, what a configuration cannot tell."""

from __future__ import annotations

import shlex

from ckptcheck.preflight.job import Job

ENGINES = ("vllm", "sglang")
TRAINERS = {"megatron": "megatron"}
"""Backend → the trainer that stands for it; any other is transformers."""
SWITCHES = {
    "prefix_cache": "engine.prefix_caching",
    "async_scheduling": "engine.async_scheduling",
    "chunked_prefill": "engine.chunked_prefill",
    "head_fp32": "engine.fp32_head",
}
"""Switch of ``parity record`` → field."""
DTYPES = ("float32", "bfloat16")


def commands(job: Job) -> list[str]:
    """Return shell lines, to be pasted: the refit check and the parity check of this job; comments say what is left out."""
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
    asked = (*_sampling(job), *_switches(job), "-o", "rollouts.safetensors")
    lines.append(_line("parity", "record", source, *engine, *precision, *asked))
    if job.text("trainer.backend") is not None:
        head = ["--trainer-head-fp32"] if job.flag("trainer.fp32_head") else []
        scored = ("--trainer", trainer, *layout, *precision, *head, "-o", "scored.safetensors")
        lines.append(_line("parity", "score", "rollouts.safetensors", source, *scored))
        lines.append(_line("parity", "judge", "scored.safetensors"))
    return lines


def _source(job: Job, model: str) -> tuple[str, list[str]]:
    """The checkpoint on this machine, and how to get it where it is on the Hub."""
    named = job.checkpoints.get("checkpoint.model")
    if named is None or not named.reason:
        return (named.path if named else model), []
    if "is on the Hub" in named.reason:
        folder = f"./{model.rpartition('/')[2]}"
        return folder, [shlex.join(["hf", "download", model, "--local-dir", folder])]
    return model, [f"# {' '.join(named.reason.split())}"]


def _options(job: Job, names: dict[str, str]) -> list[str]:
    options = []
    for option, name in names.items():
        number = job.number(name)
        if number is not None and number != 1:
            options += [option, f"{number:g}"]
    return options


def _sampling(job: Job) -> list[str]:
    top_k = job.number("rollout.top_k") or 0
    return _options(job, {"--temperature": "rollout.temperature", "--top-p": "rollout.top_p"}) + (
        ["--top-k", f"{top_k:g}"] if top_k > 0 else []
    )


def _switches(job: Job) -> list[str]:
    """The engine as the job sets it up, not as a check would."""
    given = [("logprobs", job.text("engine.logprobs"))]
    for name, field in SWITCHES.items():
        setting = job.flag(field)
        given.append((name, None if setting is None else "on" if setting else "off"))
    return [word for name, value in given if value is not None for word in ("--switch", f"{name}={value}")]


def _line(*words: str) -> str:
    return shlex.join(["ckptcheck", *words])
