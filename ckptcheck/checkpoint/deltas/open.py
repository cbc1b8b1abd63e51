"""Opens a chain of deltas, written as BASE+DELTA+DELTA, as the checkpoint that results from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ckptcheck.checkpoint.deltas.chain import DeltaChain, tabulate_chain
from ckptcheck.checkpoint.deltas.delta import UNKNOWN, Delta, normalize_version
from ckptcheck.checkpoint.deltas.disk_delta import read_disk_delta
from ckptcheck.checkpoint.deltas.flush import is_flush, read_flushes
from ckptcheck.checkpoint.deltas.patched_source import PatchedSource, list_tensors
from ckptcheck.checkpoint.deltas.target import exists, is_disk_delta
from ckptcheck.checkpoint.document import Defect
from ckptcheck.checkpoint.header import read_shard
from ckptcheck.checkpoint.source import Folder, Source
from ckptcheck.checkpoint.targets import natural_order
from ckptcheck.errors import CkptcheckError
from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Section
from ckptcheck.text.addresses import is_remote_address
from ckptcheck.text.file_io import expand_home, read_regular_file
from ckptcheck.text.formatting import count, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from ckptcheck.checkpoint.checkpoint import Checkpoint
    from ckptcheck.checkpoint.open_source import EvidenceSettings

STATE = (".weight_sync", "state.json")
"""The file in which SGLang's pull notes the version of a local checkpoint."""
MAX_STATE = 1 << 16
"""Longest such file that is read, in bytes; SGLang writes a few hundred."""


def open_chain(
    target: str, parts: list[str], open_base: Callable[..., Checkpoint], **settings: Unpack[EvidenceSettings]
) -> Checkpoint:
    """Open the checkpoint that results from a base and its deltas.

    parts: the base, then the deltas, each a folder, a file of verl's, or a folder with several. `open_base` opens the base by its
    name and the settings. Raises CkptcheckError if a part does not exist, and whatever `open_base` raises.
    """
    from ckptcheck.checkpoint.checkpoint import Checkpoint

    for number, part in enumerate(parts):
        if not exists(part) and (number or not is_remote_address(part)):
            what = f"delta {number}" if number else "the base"
            raise CkptcheckError(
                f"{what} of the chain does not exist: {part or 'it has no name'}",
                hint="name a base and its deltas in their order: BASE+DELTA+DELTA",
            )
    base_target = parts[0]
    deltas: list[Delta] = []
    notes = []
    for part in parts[1:]:
        full, found = _read_deltas(part)
        if full is not None:
            notes.append(f"{full} is a whole checkpoint: the chain begins there, and not at {base_target}")
            base_target, deltas = full, []
        deltas += found
    base = open_base(base_target, **settings)
    chain = DeltaChain(
        target,
        tuple(deltas),
        base=base.source,
        base_target=base_target,
        base_version=_find_version(base),
        tensors=list_tensors(base.shards, base.tensor_to_file),
        unfit={name: why for shard in base.shards.values() for name, why in shard.unfit.items()},
        notes=tuple(notes),
        jobs=base.jobs,
    )
    return Checkpoint.patched(base, PatchedSource(chain), settings.get("value_reader"))


def open_lone_deltas(target: str) -> LoneDeltas | None:
    """Return the deltas of a folder, without their base; None where the target is something else."""
    try:
        full, deltas = _read_deltas(target)
    except (CkptcheckError, OSError):
        return None
    if full is not None or not any(delta.changes or delta.is_known for delta in deltas):
        return None
    return LoneDeltas(DeltaChain(target, tuple(deltas)))


def _read_deltas(part: str) -> tuple[str | None, list[Delta]]:
    """Return the whole checkpoint in a part of a target, which replaces the base, or None; and the deltas after it."""
    path = Path(expand_home(part))
    if is_remote_address(part) or path.is_file():
        return None, [_read_file(path, part)]
    source = Folder(path, part)
    if is_disk_delta(source):
        return None, [read_disk_delta(source, path.name)]
    if flushes := _list_flushes(source):
        return None, [read_flushes(source, path.name, flushes)]
    full, deltas = None, []
    for folder in _list_folders(path):
        inner = Folder(folder, str(folder))
        if is_disk_delta(inner):
            deltas.append(read_disk_delta(inner, folder.name))
        elif flushes := _list_flushes(inner):
            deltas.append(read_flushes(inner, folder.name, flushes))
        elif any(name.endswith(".safetensors") for name in inner.files):
            full, deltas = str(folder), []
    if full is None and not deltas:
        deltas.append(_refuse(source, path.name, "it holds neither an index with a delta_encoding nor a flush of verl"))
    return full, deltas


def _read_file(path: Path, part: str) -> Delta:
    if is_remote_address(part):
        raise CkptcheckError(f"{part} is not on this machine, and deltas are read from disk", hint="download it first")
    source = Folder(path.parent, part, only=frozenset({path.name}))
    if path.name.endswith(".safetensors") and _list_flushes(source):
        return read_flushes(source, path.name, [path.name])
    return _refuse(source, path.name, "it is no flush of verl")


def _refuse(source: Source, name: str, reason: str) -> Delta:
    return Delta(name, source, defects=(Defect(UNKNOWN, reason),))


def _list_flushes(source: Source) -> list[str]:
    """Return the tensor files of a folder, in natural order, if all are flushes; [] for any other folder."""
    files = sorted((name for name in source.files if name.endswith(".safetensors")), key=natural_order)
    for name in files:
        if source.files[name].outside_link is not None:
            return []
        try:
            if not is_flush(read_shard(source, name)):
                return []
        except OSError:
            return []
    return files


def _list_folders(path: Path) -> list[Path]:
    """Return the folders in a folder, in natural order: the versions of a series."""
    return sorted(
        (folder for folder in path.iterdir() if folder.is_dir() and not folder.is_symlink()),
        key=lambda folder: natural_order(folder.name),
    )


def _find_version(base: Checkpoint) -> str | None:
    """Return the version of a base: that of its index, or the one that SGLang wrote beside it."""
    if base.index is not None and (version := normalize_version(base.index.metadata.get("version"))) is not None:
        return version if version.isdigit() else None
    if base.source.local is None:
        return None
    try:
        state = json.loads(read_regular_file(base.source.local.joinpath(*STATE), MAX_STATE))
    except (OSError, ValueError, RecursionError):
        return None
    return normalize_version(state.get("version")) if isinstance(state, dict) else None


class LoneDeltas(EvidenceDefaults):
    """One delta or several without their base: rules can check their form, but cannot apply them."""

    kind = "deltas"

    def __init__(self, chain: DeltaChain) -> None:
        self._chain = chain

    def view_for(self, kind: str) -> tuple[DeltaChain, ...] | None:
        """Return the chain for the rules on deltas."""
        return (self._chain,) if kind == self.kind else None

    @property
    def target(self) -> str:
        """What the user named."""
        return self._chain.target

    @property
    def unread(self) -> Mapping[str, str]:
        """File → why it could not be read; empty, because the rules report that."""
        return {}

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of files, tensors and bytes."""
        deltas = self._chain.deltas
        files = [name for delta in deltas for name in delta.source.files if name.endswith(".safetensors")]
        tensors = sum(len(delta.changes) for delta in deltas)
        return {"files": len(files), "tensors": tensors, "bytes": sum(delta.nbytes for delta in deltas)}

    @property
    def subject(self) -> str:
        """How many deltas there are, and of what size."""
        counts = self.counts
        deltas = count(len(self._chain.deltas), "delta")
        return f"{deltas} without a base · {count(counts['tensors'], 'tensor')} · {format_bytes(counts['bytes'])}"

    @property
    def sections(self) -> tuple[Section, ...]:
        """What the deltas declare, and how to have them applied."""
        table = tabulate_chain(self._chain)
        hint = f"nothing was applied: ckptcheck scan BASE+{self.target}, or ckptcheck diff BASE+{self.target} FULL, does it"
        return (Section(table.title, table.columns, table.rows, (hint,)),)
