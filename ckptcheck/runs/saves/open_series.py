"""Reads the saves of a run, those that are new only where the others are known, and what they are to be compared with.

What was read can be kept in a file, so that the next call reads only the saves that are new or were replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import msgspec

from ckptcheck.checkpoint.open import open_target
from ckptcheck.errors import CkptcheckError
from ckptcheck.runs.saves.find_saves import FoundRun, FoundSave, find_saves
from ckptcheck.runs.saves.read_save import list_versions, read_save
from ckptcheck.runs.saves.resume import list_step_folders
from ckptcheck.runs.saves.save import NO_WEIGHTS, Save
from ckptcheck.runs.saves.save_series import SaveSeries
from ckptcheck.runs.saves.strand import Strand
from ckptcheck.text.file_io import read_whole_file, replace_file
from ckptcheck.text.observer import SILENT, Observer

SCHEMA = "ckptcheck-saves/1"
LARGEST = 1 << 30
"""Bytes of the largest file that is read."""


class KeptSave(msgspec.Struct):
    """A save with what it was read from."""

    versions: dict[str, str]
    """File → what changes when it is replaced."""
    like: str
    """The checkpoint that named its tensors; "" for none."""
    save: Save


class KeptSaves(msgspec.Struct):
    """The content of the file."""

    schema: str = SCHEMA
    saves: dict[str, KeptSave] = {}
    """Address → the save."""

    def find(self, address: str, versions: dict[str, str], like: str) -> Save | None:
        """Return a save whose files are all as they were when it was read; None where it has to be read."""
        kept = self.saves.get(address)
        return kept.save if kept is not None and kept.versions == versions and kept.like == like else None


def open_kept_saves(path: Path) -> KeptSaves:
    """Read the file; a file that does not exist keeps nothing yet. Raises CkptcheckError for a file of another kind."""
    if not path.exists():
        return KeptSaves()
    try:
        kept = msgspec.json.decode(read_whole_file(path, LARGEST), type=KeptSaves)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        kept = None
    except OSError as error:
        raise CkptcheckError(f"{path} cannot be read: {error.strerror or error}") from error
    if kept is None or kept.schema != SCHEMA:
        raise CkptcheckError(
            f"{path} is not what ckptcheck series --cache wrote", hint="name another file, or remove this one"
        )
    return kept


def write_kept_saves(kept: KeptSaves, path: Path) -> None:
    """Write the file whole or not at all. Raises OutputError."""
    replace_file(path, msgspec.json.encode(kept))


def open_series(
    targets: Sequence[str],
    *,
    like: str | None = None,
    resumed: str | None = None,
    history: Path | None = None,
    cache: Path | None = None,
    follow_links: bool = False,
    jobs: int | None = None,
    observer: Observer = SILENT,
) -> SaveSeries:
    """Find and read the saves of a run.

    Args:
        targets: folders of the run, or of single saves of it.
        like: a Hugging Face checkpoint of the same model, which says what Megatron's tensors are called there.
        resumed: a save, or a run, that was written right after this one was loaded elsewhere.
        history: the record of syncs that `ckptcheck.watch` kept.
        cache: keeps what was read of each save; a save whose files have not changed is not read again.
        follow_links: follow links out of a save, to regular files.
        jobs: pieces of tensors read at a time.
        observer: receives progress.

    Raises CkptcheckError where there is no save, or a file that was named cannot be read.
    """
    found = find_saves(list(targets))
    kept = open_kept_saves(cache) if cache is not None else KeptSaves()
    reference = open_target(like) if like is not None else None
    reused = 0

    def read(one: FoundSave) -> Save:
        nonlocal reused
        versions = list_versions(one)
        is_lasting = all(version.rpartition(" ")[2] for version in versions.values())
        if is_lasting and (known := kept.find(one.address, versions, like or "")) is not None:
            reused += 1
            # another call may have named the run by another of its folders
            known.name, known.strand = one.name, one.strand
            return known
        with observer.progress(one.name) as progress:
            save = read_save(one, reference, jobs=jobs, follow_links=follow_links, progress=progress)
        if is_lasting and save.is_digested and versions == list_versions(one):
            kept.saves[one.address] = KeptSave(versions, like or "", save)
        return save

    saves = [read(one) for one in found.saves]
    _excuse_parts(saves)
    after = [read(one) for one in _find_resumed(resumed).saves] if resumed is not None else []
    if cache is not None and len(saves) + len(after) > reused:
        write_kept_saves(kept, cache)
    strands = tuple(Strand(name, tuple(of_strand)) for name, of_strand in groupby(saves, key=lambda save: save.strand))
    watched = read_watched_identities(history) if history is not None else None
    return SaveSeries(
        ", ".join(targets),
        strands,
        found.left_out,
        found.empty_folders,
        found.trackers,
        found.listings,
        found.outside,
        watched,
        tuple(after),
        reused,
    )


def _excuse_parts(saves: Sequence[Save]) -> None:
    """Take it for no defect that a part of a save has no weights, where another part of the same step has them.

    transformers' Trainer with FSDP keeps ``pytorch_model_fsdp_0`` and ``optimizer_0`` below a folder that has its own state.
    """
    for folders in list_step_folders(saves, {}, {}).values():
        for folder in folders:
            parts = [save for save in saves if f"{save.name}/".startswith(f"{folder.name}/")]
            if any(save.is_digested for save in parts):
                for save in parts:
                    save.defects = [defect for defect in save.defects if defect != NO_WEIGHTS]


def read_watched_identities(history: Path) -> dict[int, str]:
    """Return step → identity of the weights that the live trainer sent, where the record has it. Raises CkptcheckError."""
    from ckptcheck.runs.history.history import open_history

    identities = {sync.step: sync.identity for sync in open_history(history).syncs if sync.ok}
    return {step: identity for step, identity in identities.items() if step is not None and identity}


def _find_resumed(target: str) -> FoundRun:
    """Find the saves after a load. A folder that has no step in its path is one save as it is."""
    try:
        return find_saves([target])
    except CkptcheckError:
        open_target(target)  # raises where it is no checkpoint either
        return FoundRun([FoundSave(target, Path(target).name or target, "", -1, "")])
