"""The model cannot be divided into as many parts as the job asks for.

## What it checks
For a trainer and a critic that run in Megatron, against the config.json of the checkpoint that each starts from:
- tensor parallelism (TP) divides the attention heads and the columns of the feed-forward layers, and TP and the key-value
  heads divide one another; in ROLL, whose adapter of Megatron does not pad it, TP divides the vocabulary;
- in ROLL and verl, pipeline parallelism (PP), times virtual pipeline parallelism, divides the layers, unless the job says how
  many layers a stage has;
- expert parallelism (EP) divides the experts;
- TP × PP × context parallelism, and EP × PP, divide the number of GPUs.

Where Megatron builds the model from flags of the job (slime, miles), these say its dimensions.

For a trainer of NeMo-RL with DTensor: TP divides the attention heads and the key-value heads. For an engine of vLLM or SGLang,
against the checkpoint that it starts from: its TP divides the attention heads.

## Why it matters
Megatron stops when it builds the model, after hours in a queue. In a job with a critic the actor's layout is often changed and
the critic's forgotten, or the reverse.

## How to fix
Set the parallel sizes to divisors, or take GPUs in a multiple of their product.

## When it can be wrong
A fork of Megatron may pad heads or spread layers unevenly by itself. `--ignore JOB033` silences it.

## Seen in
The checks of megatron-core 0.16.1 (`TransformerConfig.__post_init__`, `get_num_layers_to_build`, `initialize_model_parallel`),
of vLLM 0.32.0 (`ModelConfig.verify_with_parallel_config`), of SGLang 0.5.23 (qwen3.py:166) and of NeMo-RL 7ea279abf
(nemo_rl/models/dtensor/parallelize.py:669)
"""

from collections.abc import Iterator
from math import prod

from ckptcheck import Problem, Skip, rule
from ckptcheck.jobs.engine_flags import TITLES
from ckptcheck.jobs.job import Job, NamedCheckpoint
from ckptcheck.text.formatting import join_words

SIDES = {"trainer": ("checkpoint.trainer", "checkpoint.model"), "critic": ("checkpoint.critic",)}
"""Who trains → the checkpoints that it may start from, the first with a config.json counts."""
READS_STAGES = ("ROLL", "verl")
"""The frameworks whose settings for uneven pipeline stages are read; in others layers are not compared."""


STOPS = {"megatron": "Megatron", "dtensor": "NeMo-RL"}
"""The trainer's backend → what stops."""


@rule(
    "JOB033",
    "indivisible-layout",
    severity="error",
    on="job",
    when=lambda job: (
        any(job.text(f"{side}.backend") in STOPS for side in SIDES)
        or (job.engine in TITLES and job["engine.tp"].status != "unknown")
    ),
)
def check(job: Job) -> Iterator[Problem]:
    reasons: list[str] = []
    unread: dict[str, list[str]] = {}
    yield from _check_engine(job, unread)
    for side, names in SIDES.items():
        if job.text(f"{side}.backend") not in STOPS:
            continue
        named = [job.checkpoints[name] for name in names if name in job.checkpoints]
        if side == "trainer" and job.model_of_flags is not None:
            named = [job.model_of_flags]
        checkpoint = next((checkpoint for checkpoint in named if checkpoint.dimensions), named[0] if named else None)
        reasons += (
            f"{leaf.key} is not resolved: {setting.source}"
            for part in ("tp", "pp", "vpp", "ep", "cp", "world")
            if (setting := job[f"{side}.{part}"]).status == "unresolved" and (leaf := setting.leaf)
        )
        parts, uneven = _compare_with_gpus(job, side)
        wrong: dict[str, str] = {}
        is_divided = any(_size(job, f"{side}.{part}") > 1 for part in ("tp", "pp", "vpp", "ep"))
        if is_divided and (checkpoint is None or checkpoint.dimensions is None):
            why = (
                "no checkpoint is named"
                if checkpoint is None
                else checkpoint.name_decider("config.json")
                if checkpoint.reason
                else "no config.json is read"
            )
            unread.setdefault(why, []).append(f"the {side}'s")
        elif is_divided and checkpoint is not None:
            wrong = _compare_with_model(job, side, checkpoint)
        # A size that has to change anyhow is one finding.
        shared = next((part for part in wrong if part in parts), "")
        if uneven and not shared:
            yield job.problem(
                uneven,
                at=f"{side}.{parts[0]}",
                hint="choose parallel sizes whose product divides the number of GPUs",
            )
        for part, text in wrong.items():
            yield job.problem(
                f"{text}; and {uneven}" if part == shared else text,
                at=f"{side}.{part}",
                hint="choose a size that divides them"
                + ("" if part in ("tp", "ep") else ", or set how many layers the first and last stage have"),
            )
    reasons += (f"{join_words(sides)} layout is not compared with its model: {why}" for why, sides in unread.items())
    if reasons:
        raise Skip("; ".join(dict.fromkeys(reasons)))


def _check_engine(job: Job, unread: dict[str, list[str]]) -> Iterator[Problem]:
    """Yield a problem where an engine's ranks do not divide the model's heads. unread: gets why that is not known."""
    checkpoint = job.checkpoints.get("checkpoint.model")
    if not job.engine_shares_heads or checkpoint is None:
        return
    if checkpoint.dimensions is None or checkpoint.dimensions.heads is None:
        why = checkpoint.name_decider("config.json") if checkpoint.reason else "no heads are known"
        unread.setdefault(why, []).append("the engine's")
    elif heads := job.undivided_heads:
        yield job.problem(
            f"the engine has TP {_size(job, 'engine.tp')}, which does not divide the {heads} attention heads of {checkpoint.named}:"
            f" {TITLES[job.engine]} stops",
            at="engine.tp",
            hint="choose a size that divides them",
        )


def _size(job: Job, name: str) -> int:
    number = job.number(name)
    return int(number) if number and number >= 1 else 1


def _compare_with_gpus(job: Job, side: str) -> tuple[list[str], str]:
    """Return (the sizes of a copy, what is said of it) where a copy does not fit the GPUs evenly; ([], "") where it does."""
    world = job.number(f"{side}.world")
    for what, parts in (("model", ("tp", "pp", "cp")), ("experts", ("ep", "pp"))):
        sizes = {part: size for part in parts if (size := _size(job, f"{side}.{part}")) > 1}
        copy = prod(sizes.values())
        if world and world % copy and (what == "model" or "ep" in sizes):
            product = " × ".join(f"{part.upper()}{size}" for part, size in sizes.items())
            return list(sizes), (
                f"a copy of the {side}'s {what} takes {copy} GPUs ({product}), which does not divide its"
                f" {job.describe(f'{side}.world')} GPUs"
            )
    return [], ""


def _compare_with_model(job: Job, side: str, checkpoint: NamedCheckpoint) -> dict[str, str]:
    """Return each parallel size that does not divide a dimension of the model → what is said of it."""
    model = checkpoint.dimensions
    assert model is not None
    tp, pp, vpp, ep = (_size(job, f"{side}.{part}") for part in ("tp", "pp", "vpp", "ep"))
    divided = [
        ("tp", tp, model.heads, "attention heads"),
        ("tp", tp, checkpoint.intermediate, "columns of the feed-forward layers"),
        ("ep", ep, model.experts, "experts"),
    ]
    if job.framework == "ROLL":  # mcore_adapter does not pad the vocabulary; Megatron-LM does
        divided.append(("tp", tp, checkpoint.vocab_size, "rows of the vocabulary"))
    if job.framework in READS_STAGES and not job.flag(f"{side}.uneven_stages"):
        divided.append(("vpp" if vpp > 1 and pp > 1 else "pp", pp * (vpp if pp > 1 else 1), model.layers, "layers"))
    groups = model.kv_heads
    if groups and groups % tp and tp % groups:
        divided.append(("tp", tp, groups, "key-value heads"))
    if job.text(f"{side}.backend") == "dtensor":
        divided = [("tp", tp, model.heads, "attention heads"), ("tp", tp, groups, "key-value heads")]
    wrong: dict[str, list[str]] = {}
    for part, size, number, what in divided:
        if number and number % size:
            wrong.setdefault(part, []).append(f"{number:,} {what}")
    said = {}
    for part, parts in wrong.items():
        written = "pp × vpp" if part == "vpp" else part
        size = pp * vpp if part == "vpp" else _size(job, f"{side}.{part}")
        said[part] = (
            f"the {side} has {written.upper()} {size}, which does not divide the {' or the '.join(parts)} of {checkpoint.named}:"
            f" {STOPS[str(job.text(f'{side}.backend'))]} stops when it builds the model"
        )
    return said
