"""Finds and opens the base model of an adapter."""

from __future__ import annotations

from pathlib import Path

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.config import Config
from ckptcheck.checkpoint.document import clip
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.checkpoint.scan_options import ScanOptions
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.rule import Skip
from ckptcheck.text.file_io import real_path


def open_base_model(ckpt: Checkpoint) -> Checkpoint:
    """Open the base model that the user named, else the folder beside the adapter that its config names.

    It follows no other path in the config, because a hostile checkpoint may name any. Raises Skip with the reason.
    """
    named = ckpt.options.base
    if named is None:
        named = str(find_base_folder(ckpt.adapter, ckpt.source.local))
    try:
        base = open_checkpoint(named, jobs=ckpt.jobs, options=ScanOptions(follow_links=ckpt.options.follow_links))
    except CkptcheckError as error:
        raise Skip(f"the base model cannot be read: {error.message}") from error
    if not base.tensors:
        raise Skip(f"no tensor of the base model {named} can be read")
    return base


def find_base_folder(config: Config | None, folder: Path | None) -> Path:
    """Return the folder beside an adapter's that its config names as the base model. Raises Skip if there is none."""
    named = config.value.get("base_model_name_or_path") if config is not None else None
    if not isinstance(named, str) or not named or "\0" in named:
        raise Skip("adapter_config.json names no base model; --base FOLDER does")
    hint = f"the base model {clip(named)} was not looked at: --base FOLDER names it"
    if folder is None:
        raise Skip(hint)
    beside = real_path(folder).parent
    for path in (Path(named), beside / named):
        try:
            resolved = real_path(path)
            if resolved.is_relative_to(beside) and resolved != real_path(folder) and resolved.is_dir():
                return resolved
        except (OSError, UnicodeEncodeError):  # UnicodeEncodeError: a lone surrogate, which no file name has
            continue
    raise Skip(hint)
