"""The types of arguments that several functions share, and what checks them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import inf, isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, get_args, overload

from ckptcheck.errors import CkptcheckError, UsageError

if TYPE_CHECKING:
    from ckptcheck.runners.runner import Runner


StrPath = str | os.PathLike[str]
Dtype = Literal["float32", "bfloat16"]
TrainerName = Literal["megatron", "transformers"]
EngineMode = Literal["plain", "stock"]
AdapterUpdate = Literal["reload", "inplace", "same"]
Bridge = Literal["builtin", "mbridge", "both"]
Device = Literal["auto", "cpu", "cuda"]
PartVerb = Literal["scan", "manifest", "verify", "diff"]
Scheme = Literal["w4a16", "w8a8", "fp8", "nvfp4", "mxfp4", "mxfp8"]
Quantizer = Literal["compressed-tensors", "slime"]
RolloutFormat = Literal[
    "slime", "slime-train", "verl", "roll", "nemo-rl", "pipelinerl", "prime-rl", "sglang", "vllm", "ckptcheck"
]
LogprobKind = Literal["raw", "processed", "unknown"]
TokenSampler = Literal["engine", "trainer"]


class NumberRange(NamedTuple):
    """The numbers that an argument takes, as the option of its name does."""

    least: float
    most: float = inf
    is_whole: bool = False


FROM_ONE = NumberRange(1, is_whole=True)
FROM_ZERO = NumberRange(0, is_whole=True)
NOT_NEGATIVE = NumberRange(0)
"""Thresholds and limits: a comparison with NaN or infinity would always pass."""
RANGES = {
    **dict.fromkeys(
        (
            "jobs",
            "tp",
            "pp",
            "ep",
            "engine_tp",
            "engine_ep",
            "engine_pp",
            "engine_dp",
            "number",
            "response",
            "batch",
            "repeats",
            "sequences",
        ),
        FROM_ONE,
    ),
    **dict.fromkeys(("top_k", "full", "step", "steps", "trainer_version", "max_lag"), FROM_ZERO),
    **dict.fromkeys(("near_zero_threshold", "identical_threshold", "rtol", "atol", "perturb", "limit"), NOT_NEGATIVE),
    **dict.fromkeys(("max_kl", "max_prob_diff", "max_abs", "temperature", "trainer_temperature"), NOT_NEGATIVE),
    **dict.fromkeys(("clip_low", "clip_high"), NOT_NEGATIVE),
    **dict.fromkeys(("max_mult_prob_error", "max_sequence_error", "max_floor_multiple", "timeout"), NumberRange(1)),
    "length": NumberRange(4, is_whole=True),
    "seed": NumberRange(-inf, is_whole=True),
    "sleep_level": NumberRange(1, 2, is_whole=True),
    "bucket_mb": NumberRange(0.001),
    "top_p": NumberRange(0, 1),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), NumberRange(-2, 2)),
    "repetition_penalty": NumberRange(0.01),
}
"""Argument → the numbers that it takes, in every function that has no range of its own for it."""


def check_runner(runner: Runner | None, device: str = "cpu") -> Runner | None:
    """Return the runner, None for the default one. Raises CkptcheckError where it cannot run anything."""
    from ckptcheck.runners.parts import Parts
    from ckptcheck.runners.runner import Local

    if isinstance(runner, Parts):
        from ckptcheck.checkpoint.objects.part_folder import open_part_folder

        runner = Parts(open_part_folder(runner.folder))
        runner.read_command()
    elif runner is not None and device != "cpu":
        raise UsageError("--device has no effect where another machine scans the values")
    return None if type(runner) is Local else runner


def to_path(path: StrPath | None) -> Path | None:
    """Return a path, None for None."""
    return None if path is None else Path(path)


def require_choices(**arguments: tuple[str | None, Any]) -> None:
    """Raise CkptcheckError for an argument that is none of its choices. name=(value, the Literal type)."""
    for name, (value, choices) in arguments.items():
        if value is not None:
            require_choice(f"--{name.replace('_', '-')}", value, choices)


def require_choice(option: str, value: str, choices: Any) -> None:
    """Raise CkptcheckError for a value that is none of the choices of an option. choices: a Literal type."""
    if value not in get_args(choices):
        raise CkptcheckError(f"{option} is one of {', '.join(get_args(choices))}, not {value}")


def require_ranges(**arguments: object) -> None:
    """Raise CkptcheckError for an argument that is none of the numbers of its range in `RANGES`. None is no number and passes."""
    for name, value in arguments.items():
        require_range(name, value, RANGES[name])


def require_range(name: str, value: object, allowed: NumberRange) -> None:
    """Raise CkptcheckError for a value that is no finite number of this range. None passes."""
    if value is None:
        return
    is_number = isinstance(value, Integral if allowed.is_whole else Real)
    if not (is_number and isfinite(cast(float, value)) and allowed.least <= cast(float, value) <= allowed.most):
        kind = "whole numbers" if allowed.is_whole else "finite numbers"
        most = "on" if allowed.most == inf else f"to {allowed.most:g}"
        bounds = f" from {allowed.least:g} {most}" if isfinite(allowed.least) else ""
        raise CkptcheckError(f"--{name.replace('_', '-')} takes {kind}{bounds}, not {value!r}")


def normalize_gpu_option(option: str, value: str | None) -> str | None:
    """Return the GPUs without spaces. Raises CkptcheckError that names the option."""
    from ckptcheck.live.runtime.process.gpus import normalize_gpus

    try:
        return None if value is None else normalize_gpus(str(value))
    except CkptcheckError as error:
        raise CkptcheckError(f"{option}: {error.message}") from None


@overload
def wrap_single(values: str | Sequence[str]) -> tuple[str, ...]: ...
@overload
def wrap_single(values: int | Sequence[int]) -> tuple[int, ...]: ...
@overload
def wrap_single(values: StrPath | Sequence[StrPath]) -> tuple[StrPath, ...]: ...
def wrap_single(values: Any) -> tuple[Any, ...]:
    """Return the values as a tuple; a single string, path or number gives a tuple of one, and no letters."""
    return (values,) if isinstance(values, (str, os.PathLike, Real)) else tuple(values)


def choose_subset(words: Sequence[str], known: Sequence[str], option: str) -> tuple[str, ...]:
    """Return the words without repetitions. Raises CkptcheckError for none, and for one that is not known."""
    chosen = tuple(dict.fromkeys(words))
    if not chosen or set(chosen) - set(known):
        raise CkptcheckError(f"{option} is some of {', '.join(known)}, not {', '.join(words) or 'nothing'}")
    return chosen
