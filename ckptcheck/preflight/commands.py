"""The commands that check, on the real engine and trainer, what a configuration cannot tell."""

from __future__ import annotations

import shlex

from ckptcheck.preflight.job import Job

ENGINES = ("vllm", "sglang")
TRAINERS = {"megatron": "megatron"}
"""Backend → the trainer that stands for it; any other is transformers."""
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
    temperature = _options(job, {"--temperature": "rollout.temperature"}, usual=None)
    lines.append(_line("parity", "record", source, *engine, *precision, *temperature, "-o", "rollouts.safetensors"))
    if job.text("trainer.backend") is not None:
        scored = ("--trainer", trainer, source, *layout, *precision, "-o", "scored.safetensors")
        lines.append(_line("parity", "score", "rollouts.safetensors", *scored))
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


def _options(job: Job, names: dict[str, str], usual: float | None = 1) -> list[str]:
    options = []
    for option, name in names.items():
        number = job.number(name)
        if number is not None and number != usual:
            options += [option, f"{number:g}"]
    return options


def _line(*words: str) -> str:
    return shlex.join(["ckptcheck", *words])
