"""The options that several commands share: their help, the values they accept, and which of them the user wrote.

A command takes an option by its type here (``tp: TrainerTp = 1``); the default stays with the command.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptcheck import api, reporters
from ckptcheck.errors import CkptcheckError, UsageError
from ckptcheck.linter import report
from ckptcheck.text.addresses import is_remote_address
from ckptcheck.unused_options import reject_flags

if TYPE_CHECKING:
    from ckptcheck.runners.ray_cluster import Ray


def finite(value: float | None) -> float | None:
    """Accept a finite number from 0 on. NaN and infinity would make every comparison with a limit pass.

    A callback of an option. Raises typer.BadParameter (exit code 2).
    """
    if value is not None and not (isfinite(value) and value >= 0):
        raise typer.BadParameter(f"{value:g} is no finite number from 0 on")
    return value


def gpus(value: str | None) -> str | None:
    """Normalize a list of GPUs; "" stands for none.

    A callback of an option. Raises typer.BadParameter (exit code 2).

    >>> gpus("0, 1"), gpus("")
    ('0,1', '')
    """
    from ckptcheck.live.runtime.process.gpus import normalize_gpus

    try:
        return normalize_gpus(value) if value else value
    except CkptcheckError as error:
        raise typer.BadParameter(error.message) from None


def split_list(option: str, values: Sequence[str]) -> list[str]:
    """Split the values of a repeatable option at their commas. Raises UsageError for a name that is empty.

    >>> split_list("--select", ["IDX,CFG003", " MOE"])
    ['IDX', 'CFG003', 'MOE']
    """
    names = []
    for value in values:
        parts = [part.strip() for part in value.split(",")]
        if "" in parts:
            raise UsageError(f"{option} {value!r} has an empty name", hint="write names with one comma between two")
        names += parts
    return names


# The report: every verb that runs rules has these.
Format = Annotated[
    reporters.ReportFormat,
    typer.Option(
        help="Format of the report; html is a page with pictures, for a browser, json-with-pictures is for ckptcheck report."
    ),
]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the report to a file.")]
ReportOrParts = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Write the report to a file; with --part: the folder, or s3:// address, of all parts.",
    ),
]
FailOn = Annotated[report.FailOn, typer.Option(help="Exit with 1 on findings of this severity or a worse one.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Also list the rules that passed.")]
Select = Annotated[list[str], typer.Option(help="Run only these rules: codes or prefixes of codes, IDX,CFG003.")]
Ignore = Annotated[list[str], typer.Option(help="Leave these rules out; the report lists them as skipped.")]

# What is checked.
TARGET_FORMS = (
    "A folder (Hugging Face or Megatron), a .safetensors file, an index, hf://org/name@revision or its https:// address, "
    "s3://bucket/folder (gs://, az://), or BASE+DELTA+DELTA."
)
FollowLinks = Annotated[
    bool, typer.Option("--follow-links", help="Follow links out of a checkpoint, to regular files.")
]
Like = Annotated[
    str | None,
    typer.Option(
        metavar="CHECKPOINT",
        help="A Hugging Face checkpoint of the same model: its config says what Megatron's tensors are called there.",
    ),
]
Target = Annotated[str, typer.Argument(metavar="TARGET", help=TARGET_FORMS)]
Source = Annotated[str, typer.Argument(metavar="SOURCE", help="A Hugging Face checkpoint on this disk.")]
StoredOutputFile = Annotated[
    str, typer.Option("-o", "--output", metavar="FILE", help="The file to write, or its s3:// address (gs://, az://).")
]
OutputFile = Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The file to write.")]
TensorJobs = Annotated[int | None, typer.Option(min=1, help="Tensors read at a time.", show_default="cores")]
TrustConfig = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The trust of a Sigstore instance of your own, for keyless signatures."),
]

# Where the work is done.
Part = Annotated[
    str | None,
    typer.Option(
        "--part",
        metavar="I/N",
        help="Read only part I of N, from 0 to N-1, and write it to the folder of -o; ckptcheck join makes the report.",
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="ray",
        help="Read in a Ray cluster: ray for the one of this machine, or ray://HOST:10001.",
        show_default="this machine",
    ),
]


def find_runner(on: str | None) -> Ray | None:
    """Return what ``--on`` names, None for this machine. Raises CkptcheckError."""
    if on is None:
        return None
    from ckptcheck.runners.ray_cluster import parse_runner

    return parse_runner(on)


# The engine.
EngineName = Annotated[str, typer.Option("--engine", help="The inference engine: vllm or sglang.")]
EngineTp = Annotated[int, typer.Option(min=1, help="Tensor parallelism of the engine.")]
EngineMode = Annotated[
    api.EngineMode, typer.Option(help="plain keeps weights readable on a CPU; stock leaves the engine as it is.")
]
EngineSource = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="The checkpoint that the engine loads, where it is another one than SOURCE."),
]
EnginePython = Annotated[
    Path | None,
    typer.Option(help="A Python of yours that has the engine.", show_default="the one installed by ckptcheck"),
]
EngineSwitches = Annotated[
    list[str] | None,
    typer.Option(
        "--switch",
        metavar="NAME=VALUE",
        help="A setting of the engine, repeatable: prefix_cache=off, logprobs=processed, compilation=graphs, …",
    ),
]

# The trainer.
Trainer = Annotated[api.TrainerName, typer.Option(help="The trainer that scores.")]
TrainerTp = Annotated[int, typer.Option(min=1, help="Tensor parallelism of the trainer.")]
TrainerPp = Annotated[int, typer.Option(min=1, help="Pipeline parallelism of the trainer.")]
TrainerEp = Annotated[int, typer.Option(min=1, help="Expert parallelism of the trainer.")]
TrainerPython = Annotated[
    Path | None,
    typer.Option(help="A Python of yours that has the trainer.", show_default="the one installed by ckptcheck"),
]
TrainerDtype = Annotated[
    api.Dtype | None, typer.Option(help="The dtype that the trainer computes in.", show_default="as --dtype")
]
HeadFp32 = Annotated[bool, typer.Option("--trainer-head-fp32", help="The trainer's output head computes in float32.")]

# Both.
ComputeDtype = Annotated[api.Dtype, typer.Option("--dtype", help="The dtype that engine and trainer compute in.")]
Timeout = Annotated[float, typer.Option(min=1, callback=finite, help="Seconds for any one call.")]

# Prompts and sampling.
Prompts = Annotated[
    Path | None,
    typer.Option("--prompts", metavar="FILE", help="Prompts: JSON lines (tokens, messages, text), or plain lines."),
]
Temperature = Annotated[float, typer.Option(min=0, callback=finite, help="Sampling temperature; 0: greedy.")]
TopP = Annotated[float, typer.Option(min=0, max=1, callback=finite, help="Nucleus sampling; 1: off.")]
TopK = Annotated[int, typer.Option(min=0, help="Sampling from the k most likely tokens; 0: off.")]
PresencePenalty = Annotated[
    float,
    typer.Option(min=-2, max=2, callback=finite, help="Taken from the logits of tokens in the response; 0: off."),
]
FrequencyPenalty = Annotated[
    float,
    typer.Option(min=-2, max=2, callback=finite, help="Taken as often as a token is in the response; 0: off."),
]
RepetitionPenalty = Annotated[
    float,
    typer.Option(min=0.01, callback=finite, help="Divides positive logits of tokens that are there already; 1: off."),
]
Seed = Annotated[int, typer.Option(help="Seed of the first prompt; every further prompt adds 1.")]
FloorFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="The noise floor of this model: a file of calibrate, or rollouts with equal weights."
    ),
]


def require_file(output: str | None) -> Path | None:
    """Return the file that a report is written to, None for none. Raises UsageError for an address in a store."""
    if output is not None and is_remote_address(output):
        raise UsageError(
            "a report is written to a file", hint="name one with -o; parts and a manifest may lie in a store"
        )
    return None if output is None else Path(output)


class WrittenOptions:
    """The options that the user wrote on the command line, by the names of the command's parameters."""

    def __init__(self, ctx: typer.Context) -> None:
        self._parameters = {param.name for param in ctx.command.params}
        self._flags: dict[str, str] = {}
        for param in ctx.command.params:
            name = param.name or ""
            source = ctx.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                flags = param.secondary_opts if ctx.params.get(name) is False else param.opts
                self._flags[name] = max(flags or param.opts, key=len)  # --output, not -o

    def __contains__(self, name: str) -> bool:
        assert name in self._parameters, f"the command has no parameter {name}"
        return name in self._flags

    def reject(self, unused: Sequence[str], where: str, hint: str | None = None) -> None:
        """Raise CkptcheckError that names those of the unused options that the user wrote. where: why they have no effect."""
        reject_flags([self._flags[name] for name in unused if name in self], where, hint)
