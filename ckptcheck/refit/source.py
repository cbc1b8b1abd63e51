"""What a trial starts from: a Hugging Face checkpoint as it is, a Megatron run in Hugging Face form."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckptcheck import pack
from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.open import open_target
from ckptcheck.checkpoint.source import Folder
from ckptcheck.errors import CkptcheckError
from ckptcheck.phrase import count
from ckptcheck.report import Report, Section
from ckptcheck.run import run
from ckptcheck.trainers.megatron_settings import refuse_critic
from ckptcheck.trainers.megatron_source import hugging_face_form
from ckptcheck.trainers.remote import BESIDE, OWN

if TYPE_CHECKING:
    from ckptcheck.checkpoint.megatron.run import Megatron

CONFIG = "config.json"


def opened(target: str, folder: Path, described: Path | None = None, *, spared: list[str] | None = None) -> Checkpoint:
    """Open a source after a scan of its headers; a Megatron run is written to `folder` as a Hugging Face checkpoint.

    described: folder with the config.json of the model, and its tokenizer, for a run whose arguments do not say enough. spared:
    takes the source's own errors, where the trial is to go on in spite of them. Raises CkptcheckError for a source that has such
    errors otherwise (a trial would show those), for a critic, and for a run of which no model can be built; EvidenceError where
    it cannot be read.
    """
    found = open_target(target)
    if isinstance(found, Checkpoint):
        if described is not None:
            raise CkptcheckError(f"--hf-config is for Megatron runs, and {target} has a {CONFIG} of its own")
        refuse_critic(found.config, target)
        found.no_values = "only headers are read before a trial"
        _sound(found, target, spared)
        return found
    _sound(found, target, spared)
    config = None if described is None else _config(described)
    refuse_critic(hugging_face_form(found, folder, config).config, target)
    for path in sorted(described.iterdir()) if described is not None else ():
        if path.suffix in BESIDE and path.name not in OWN and path.is_file():
            shutil.copyfile(path, folder / path.name)
    return Checkpoint(Folder(folder, target))


def told(report: Report, spared: Sequence[str] | None) -> Report:
    """Return the report of a trial, with the errors first in spite of which it was made."""
    if not spared:
        return report
    title = "errors of the source itself, in spite of which this was tried (--despite-errors)"
    return replace(report, sections=(Section(title, lines=tuple(spared)), *report.sections))


def _config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no JSON"
        raise CkptcheckError(f"--hf-config {folder}: {CONFIG} cannot be read: {reason}") from error
    if not isinstance(config, dict):
        raise CkptcheckError(f"--hf-config {folder}: {CONFIG} is not an object")
    return config


def _sound(source: Checkpoint | Megatron, target: str, spared: list[str] | None) -> None:
    """Scan the headers. Raises CkptcheckError for errors, unless they are spared."""
    errors = [finding for finding in run(source, pack.load()).findings if finding.severity == "error"]
    if spared is not None:
        spared += [f"{error.code} {error.message}" for error in errors]
    elif errors:
        raise CkptcheckError(
            f"{target} has {count(len(errors), 'error')} of its own, the first: {errors[0].message}",
            hint=f"ckptcheck scan {target}; ckptcheck refit --despite-errors goes on all the same",
        )
