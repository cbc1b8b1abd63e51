"""The checkpoints that a job names: those on this machine are scanned, headers only, as its trainer and engine would read them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.document import clipped
from ckptcheck.checkpoint.open import REPOSITORY
from ckptcheck.errors import CkptcheckError
from ckptcheck.tilde import expanded

if TYPE_CHECKING:
    from ckptcheck.preflight.job import Job
    from ckptcheck.rule import Finding

NAMES = ("checkpoint.model", "checkpoint.trainer")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True)
class NamedCheckpoint:
    """What a named checkpoint is found to be.

    named: as the job writes it; path: where that is. reason: why it was not looked at, "" where it was. errors: findings
    of severity error. consumers: who was asked about its ignore list. experts, context, dtype,
    quantized: of its config.json, None where that does not say.
    """

    named: str
    path: str = ""
    reason: str = ""
    errors: tuple[Finding, ...] = ()
    consumers: tuple[str, ...] = ()
    experts: bool | None = None
    context: int | None = None
    dtype: str | None = None
    quantized: str | None = None


def look_at(job: Job, folder: Path) -> None:
    """Look at the checkpoints that the job names. folder: of the job's file, against which relative paths are tried too."""
    found: dict[str, NamedCheckpoint] = {}
    for name in NAMES:
        setting = job[name]
        if setting.known and setting.value not in (None, "none", ""):
            found[name] = _one(job, str(setting.value), folder)
    job.checkpoints = found


def _one(job: Job, named: str, folder: Path) -> NamedCheckpoint:
    try:
        path = next((path for path in _places(named, folder) if path.exists()), None)
    except (OSError, ValueError, RuntimeError):  # a name too long, a NUL, no home
        return NamedCheckpoint(named, reason=f"{clipped(repr(named))} is no name of a file")
    if path is None:
        if REPOSITORY.fullmatch(named):
            return NamedCheckpoint(named, reason=f"{named} is on the Hub: ckptcheck scan hf://{named}")
        return NamedCheckpoint(named, reason=f"{clipped(named)} is not on this machine")
    try:
        return _scanned(job, named, str(path))
    except CkptcheckError as error:
        return NamedCheckpoint(named, str(path), error.message)


def _places(named: str, folder: Path) -> list[Path]:
    path = Path(expanded(named))
    return [path] if path.is_absolute() else [folder / path, path]


def _scanned(job: Job, named: str, path: str) -> NamedCheckpoint:
    from ckptcheck import pack
    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.config import Config
    from ckptcheck.checkpoint.open import open_target
    from ckptcheck.checkpoint.options import Options
    from ckptcheck.dialects.judgement import DIALECTS
    from ckptcheck.run import run

    consumers = tuple(name for name in dict.fromkeys((job.engine, job.framework.lower())) if name in DIALECTS)
    ckpt = open_target(path)
    ckpt.options = Options(consumers=consumers)
    ckpt.no_values = "headers only"
    report = run(ckpt, pack.load())
    errors = tuple(finding for finding in report.findings if finding.severity == "error")
    if not isinstance(ckpt, Checkpoint):
        return NamedCheckpoint(named, path, "", errors, consumers)
    config = ckpt.config or Config("config.json")
    positions, parameters = config.get("max_position_embeddings"), config.get("rope_parameters")
    scaled = config.get("rope_scaling") or (isinstance(parameters, dict) and parameters.get("factor"))
    quantization = config.get("quantization_config")
    return NamedCheckpoint(
        named,
        path,
        "",
        errors,
        consumers,
        experts=(config.integer(*EXPERTS) or 0) > 1,
        context=positions if type(positions) is int and not scaled else None,
        dtype=next((value for key in ("dtype", "torch_dtype") if isinstance(value := config.get(key), str)), None),
        quantized=str(quantization.get("quant_method")) if isinstance(quantization, dict) else "none",
    )
