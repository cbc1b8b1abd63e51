"""Opens the source of a trial: a Hugging Face checkpoint as it is, a Megatron run converted to one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.files_beside import copy_files_beside, list_files_beside
from ckptcheck.checkpoint.open import open_target
from ckptcheck.checkpoint.source import Folder
from ckptcheck.checkpoint.value_reader import UnreadValues
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter import rule_loader
from ckptcheck.linter.report import Report, Section
from ckptcheck.linter.runner import run_rules
from ckptcheck.live.runtime.trainers.megatron_settings import refuse_critic
from ckptcheck.live.runtime.trainers.megatron_source import write_hf_checkpoint
from ckptcheck.live.runtime.trainers.remote import OWN
from ckptcheck.text.file_io import read_json_file
from ckptcheck.text.formatting import count

if TYPE_CHECKING:
    from ckptcheck.checkpoint.megatron.megatron import Megatron

CONFIG = "config.json"


def open_source(
    target: str, folder: Path, config_folder: Path | None = None, *, tolerated: list[str] | None = None
) -> Checkpoint:
    """Open a source and scan its headers; a Megatron run is written to `folder` as a Hugging Face checkpoint.

    config_folder: folder with the model's config.json and tokenizer, for a run whose arguments do not say enough.
    tolerated: collects the errors of the scan if the trial is to continue despite them.
    Raises CkptcheckError for a critic, for a run that no model can be built from, and, without `tolerated`, for a source with
    errors (the trial would find those and nothing else). Raises EvidenceError if the source cannot be read.
    """
    source = open_target(target, value_reader=UnreadValues("only headers are read before a trial"))
    if isinstance(source, Checkpoint):
        if config_folder is not None:
            raise CkptcheckError(f"--set hf-config is for Megatron runs, and {target} has a {CONFIG} of its own")
        refuse_critic(source.config, target)
        _check_source(source, target, tolerated)
        return source
    _check_source(source, target, tolerated)
    config = None if config_folder is None else _read_config(config_folder)
    refuse_critic(write_hf_checkpoint(source, folder, config).config, target)
    if config_folder is not None:
        copy_files_beside(config_folder, folder, lambda name: name not in OWN)
    return Checkpoint(Folder(folder, target))


def add_source_errors(report: Report, tolerated: Sequence[str] | None) -> Report:
    """Return the report of a trial with the tolerated errors of its source in front."""
    if not tolerated:
        return report
    title = "errors of the source itself, which this trial ignored (--set despite-errors=on)"
    return structs.replace(report, sections=(Section(title, lines=tuple(tolerated)), *report.sections))


def _read_config(folder: Path) -> dict[str, Any]:
    if folder.is_dir():
        list_files_beside(folder, lambda name: name not in OWN or name == CONFIG)
    try:
        config = read_json_file(folder / CONFIG)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not JSON"
        raise CkptcheckError(f"--set hf-config={folder}: {CONFIG} cannot be read: {reason}") from error
    if not isinstance(config, dict):
        raise CkptcheckError(f"--set hf-config={folder}: {CONFIG} is not an object")
    return config


def _check_source(source: Checkpoint | Megatron, target: str, tolerated: list[str] | None) -> None:
    """Scan the headers. Raises CkptcheckError for errors unless they are tolerated."""
    errors = [
        finding for finding in run_rules(source, rule_loader.load_rules()).findings if finding.severity == "error"
    ]
    if tolerated is not None:
        tolerated += [f"{error.code} {error.message}" for error in errors]
    elif errors:
        raise CkptcheckError(
            f"{target} has {count(len(errors), 'error')}, the first: {errors[0].message}",
            hint=f"ckptcheck scan {target}; ckptcheck refit --set despite-errors=on continues despite them",
        )
