"""Which options have no effect beside which others. They are rejected: whoever gives an option believes that it has an effect.

The command line and the Python API share these rules. The command line knows which options the user wrote; a function knows which
arguments differ from their defaults.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ckptcheck.errors import UsageError
from ckptcheck.text.addresses import is_remote_address
from ckptcheck.text.formatting import join_words

VALUE_OPTIONS = ("no_mmap", "device", "near_zero_threshold", "identical_threshold")
"""Options of a scan about how values are read and judged."""
LIMIT_OPTIONS = ("max_mult_prob_error", "max_kl", "max_prob_diff", "max_abs", "max_sequence_error")
SEARCH_ENGINE_OPTIONS = ("engine_source", "dtype", "switch", "engine_mode", "engine_tp", "engine_python")
SEARCH_OPTIONS = (
    "engine", *SEARCH_ENGINE_OPTIONS, "trainer", "trainer_dtype", "head_fp32", "tp", "pp", "ep", "trainer_python", "timeout",
)  # fmt: skip
"""Options of ``parity why`` about how both sides run."""
LOCALIZE_OPTIONS = (
    "engine", "engine_source", "trainer", "tp", "pp", "ep", "engine_tp", "engine_mode", "tokens", "engine_python",
    "trainer_python", "timeout",
)  # fmt: skip
"""Options of ``parity localize`` about how both sides run."""
TRAINER_OPTIONS = ("trainer", "tp", "pp", "ep", "device", "trainer_gpus", "trainer_python")
SOURCE_OPTIONS = (*TRAINER_OPTIONS, "engine_python", "hf_config", "despite_errors", "keep")
"""Options of ``refit --attach`` about what is started with SOURCE."""
CONFORMANCE_UNUSED = (
    "attach", *TRAINER_OPTIONS, "quantize", "ignore", "trainer_quantizer", "send_draft", "bucket_mb", "pause", "sleep_level",
    "clear_cache", "steps", "perturb",
    "check_weights", "check_logprobs", "timeout", "record", "rollouts", "keep", "allow_write", "allow_remote",
)  # fmt: skip
"""Options of ``refit`` about a trainer, servers and the length of a trial."""
ENGINE_OPTIONS = ("engine", "engine_tp", "engine_mode", "dtype", "engine_gpus", "switch", "engine_python")
ATTACHED = "with --attach: the servers run already, and no sync is made"


class Options(Protocol):
    """The options of one verb, of which the user gave some."""

    def reject(self, unused: Sequence[str], where: str, hint: str | None = None) -> None:
        """Raise CkptcheckError that names those of the unused options that the user gave. where: why they have no effect."""
        ...


class Arguments:
    """The arguments of a function, of which the caller gave those that differ from their defaults."""

    def __init__(self, function: Callable[..., Any], values: Mapping[str, Any]) -> None:
        parameters = inspect.signature(function).parameters
        self._given = {name for name, each in parameters.items() if name in values and values[name] != each.default}

    def reject(self, unused: Sequence[str], where: str, hint: str | None = None) -> None:
        """Raise CkptcheckError that names those of the unused arguments that the caller gave, as options."""
        reject_flags([f"--{name.replace('_', '-')}" for name in unused if name in self._given], where, hint)


def reject_flags(flags: Sequence[str], where: str, hint: str | None = None) -> None:
    """Raise UsageError that says that these have no effect, unless there are none."""
    if flags:
        raise UsageError(f"{join_words(flags)} {'has' if len(flags) == 1 else 'have'} no effect {where}", hint)


def reject_unused_scan_options(
    options: Options, targets: Sequence[str], *, headers_only: bool, values: bool, write_baseline: bool
) -> None:
    """Reject options of ``scan``. targets: with addresses of the Hub written ``hf://``."""
    if all(target.startswith("hf://") for target in targets):
        options.reject(["recursive", "follow_links"], "for targets on the Hub")
    elif all(map(is_remote_address, targets)):
        options.reject(["follow_links"], "for targets in an object store: it has no links")
    if write_baseline:
        options.reject(["baseline"], "with --write-baseline, which lists all findings anew")
    if headers_only:
        options.reject(VALUE_OPTIONS, "with --headers-only: no values are read")
    elif not values and all(target.startswith("hf://") for target in targets):
        options.reject(VALUE_OPTIONS, "for targets on the Hub: their values are not read", "give --values too")
    elif not values and all(map(is_remote_address, targets)):
        where = "for targets in an object store: their values are not read"
        options.reject(VALUE_OPTIONS, where, "give --values too")


def reject_unused_judge_options(options: Options, *, no_limits: bool, has_floor: bool) -> None:
    """Reject options of ``parity judge``."""
    if no_limits:
        options.reject(LIMIT_OPTIONS, "with --no-limits")
    if not has_floor:
        options.reject(["max_floor_multiple"], "without --floor")


def reject_unused_length(options: Options, *, has_prompts: bool) -> None:
    """Reject --length, which is about built-in prompts, beside a file of prompts."""
    if has_prompts:
        options.reject(["length"], "with --prompts: a file's prompts are taken whole")


def reject_unused_matrix_options(
    options: Options, *, has_floor: bool, pairs: Sequence[str], decoding: Sequence[str], layouts: Sequence[str]
) -> None:
    """Reject options of ``parity matrix``. pairs: ``trainer:engine``."""
    if not has_floor:
        options.reject(["max_floor_multiple"], "without --floor or --calibrate")
    sides = {side for pair in pairs for side in pair.split(":")}
    if layouts:
        options.reject(["tp", "pp", "ep", "engine_tp"], "with --layouts, which names the sizes")
    if "megatron" not in sides:
        options.reject(["tp", "pp", "ep"], "without a pair that has megatron: other trainers have one process")
    if sides <= {"transformers", "megatron"}:
        options.reject(
            ["engine_tp", "engine_mode", "engine_python", "switch"],
            "without a pair that has an engine: two trainers are run",
        )
    if set(decoding) == {"greedy"}:
        options.reject(["temperature", "top_p", "top_k"], "with --decoding greedy")


def reject_unused_probe_options(options: Options, *, has_prompts: bool, has_only: bool) -> None:
    """Reject options of ``parity probe``."""
    reject_unused_length(options, has_prompts=has_prompts)
    if has_only:
        options.reject(["compilation"], "with --only, which names the probes")


def reject_unused_why_options(options: Options, *, has_source: bool, engine: str) -> None:
    """Reject options of ``parity why``."""
    if not has_source:
        options.reject(SEARCH_OPTIONS, "without SOURCE: nothing is run", "name the trainer's checkpoint after FILE")
    if engine == "none":
        options.reject(SEARCH_ENGINE_OPTIONS, "with --engine none: no engine is run")


def reject_unused_localize_options(options: Options, *, has_dumps: bool, engine: str) -> None:
    """Reject options of ``parity localize``."""
    if has_dumps:
        options.reject(LOCALIZE_OPTIONS, "with --dumps: nothing is run")
    if engine in ("transformers", "megatron"):
        options.reject(["engine_tp", "engine_mode", "engine_python"], f"with --engine {engine}: two trainers are run")


def reject_unused_refit_options(
    options: Options,
    *,
    device: str,
    quantizes: bool,
    steps: int,
    checks_weights: bool,
    checks_logprobs: bool,
    timeouts: Sequence[str],
) -> None:
    """Reject options of ``refit``. timeouts: as the user wrote them. Raises CkptcheckError where no check is left, too."""
    _reject_device_options(options, device, checks_weights, checks_logprobs)
    if not quantizes:
        options.reject(["ignore", "trainer_quantizer"], "where nothing is quantized", "give --quantize too")
    if not steps:
        options.reject(["perturb"], "with --steps 0: it takes the place of a step")
        options.reject(["sleep_level"], "with --steps 0: the engine sleeps while the trainer steps")
        _reject_phases(timeouts, ["step"], "with --steps 0")
    if not checks_logprobs:
        options.reject(["fast", "clear_cache"], "with --no-check-logprobs: nothing is scored")
        _reject_phases(timeouts, ["score"], "with --no-check-logprobs: nothing is scored")


def reject_unused_conformance_options(options: Options, *, is_own: bool, has_source: bool) -> None:
    """Reject options of ``refit --conformance``. is_own: whether the transport is a class of the user's own."""
    options.reject(CONFORMANCE_UNUSED, "with --conformance: no trainer runs, and the kit chooses what is sent")
    if is_own:
        options.reject(ENGINE_OPTIONS, "with a transport of your own, which brings its receiver")
    if not has_source:
        options.reject(["hf_config", "despite_errors"], "without SOURCE")


def reject_unused_attach_options(
    options: Options,
    *,
    device: str,
    has_source: bool,
    checks_weights: bool,
    checks_logprobs: bool,
    timeouts: Sequence[str],
) -> None:
    """Reject options of ``refit --attach``. timeouts: as the user wrote them. Raises CkptcheckError where no check is left, too."""
    _reject_device_options(options, device, checks_weights, checks_logprobs)
    _reject_phases(timeouts, ["step", "sync"], ATTACHED)
    if not has_source:
        where = "where servers are compared with each other only"
        options.reject(SOURCE_OPTIONS, where, "name the checkpoint they should serve")
        _reject_phases(timeouts, ["start"], f"{where}: nothing is started")
    if not checks_logprobs:
        options.reject(TRAINER_OPTIONS, "with --attach and --no-check-logprobs: no trainer is started")
    if not checks_weights:
        options.reject(["engine_python"], "with --attach and --no-check-weight-update-equal: no engine is started")


def _reject_device_options(options: Options, device: str, checks_weights: bool, checks_logprobs: bool) -> None:
    if not (checks_weights or checks_logprobs):
        raise UsageError("with both checks turned off there is nothing to check")
    if device == "cpu":
        options.reject(["trainer_gpus"], "with --device cpu: the trainer is kept off GPUs")


def reject_unused_lora_phases(timeouts: Sequence[str]) -> None:
    """Reject timeouts of phases that ``refit lora`` does not have. timeouts: as the user wrote them."""
    _reject_phases(timeouts, ["score", "step"], "with refit lora: adapters are loaded and scored in one phase, sync")


def _reject_phases(timeouts: Sequence[str], unused: Sequence[str], where: str) -> None:
    """Reject timeouts of these phases, which are written ``PHASE=SECONDS``."""
    phases = {text.rpartition("=")[0] for text in timeouts}
    reject_flags([f"--timeout {phase}=" for phase in unused if phase in phases], where)
