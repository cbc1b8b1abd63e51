"""A manifest: what every tensor of a checkpoint was, so that it can be told later whether it still is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.phrase import count, few
from ckptcheck.values.digest import digests
from ckptcheck.writing import replace_file

SCHEMA = "ckptcheck-manifest/1"


class Entry(msgspec.Struct, frozen=True):
    """One tensor. digest: xxh3-128 of its bytes, hexadecimal. file: the shard that held it."""

    dtype: str
    shape: tuple[int, ...]
    digest: str
    file: str


class Manifest(msgspec.Struct):
    """tensors: name → entry."""

    schema: str
    target: str
    tensors: dict[str, Entry]


def take(ckpt: Checkpoint, *, jobs: int | None = None, progress: Callable[[int, int], None] | None = None) -> Manifest:
    """Digest every tensor. Raises EvidenceError where a shard is missing or cannot be read: half a manifest vouches for nothing."""
    absent = [name for name in ckpt.loaded if name not in ckpt.shards or not ckpt.shards[name].readable]
    if absent or not ckpt.tensors:
        what = f"{few(absent)} cannot be read" if absent else "it holds no tensor"
        raise EvidenceError(f"no manifest of {ckpt.target} can be taken: {what}", hint="ckptcheck scan says more")
    found = digests(ckpt, jobs=jobs or os.cpu_count() or 1, progress=progress)
    entries = {
        name: Entry(tensor.dtype, tensor.shape, found[name], ckpt.holders[name])
        for name, tensor in sorted(ckpt.tensors.items())
    }
    return Manifest(SCHEMA, ckpt.target, entries)


def write(manifest: Manifest, path: Path) -> None:
    """Write a manifest, one tensor a line. Raises CkptcheckError."""
    lines = (f"  {json.dumps(name)}: {msgspec.json.encode(entry).decode()}" for name, entry in manifest.tensors.items())
    text = (
        f'{{\n"schema": "{SCHEMA}",\n"target": {json.dumps(manifest.target)},\n"tensors": {{\n'
        + ",\n".join(lines)
        + "\n}\n}\n"
    )
    replace_file(path, text.encode("utf-8", "backslashreplace"))


def read(path: Path) -> Manifest:
    """Read a manifest. Raises CkptcheckError when it is none, or lists no tensor."""
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except OSError as error:
        raise CkptcheckError(f"cannot read the manifest {path}: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CkptcheckError(
            f"{path} is not a manifest of ckptcheck: {error}", hint="ckptcheck manifest writes one"
        ) from error
    if manifest.schema != SCHEMA or not manifest.tensors:
        what = "lists no tensor" if manifest.schema == SCHEMA else f"has the schema {manifest.schema!r}"
        raise CkptcheckError(f"{path} {what}, so nothing can be verified by it")
    return manifest


@dataclass(frozen=True)
class Verification:
    """The evidence of `verify`: a checkpoint now, and what it was when the manifest was taken."""

    ckpt: Checkpoint
    manifest: Manifest
    now: Mapping[str, Entry] = field(repr=False)
    kind: str = "manifest"

    @property
    def target(self) -> str:
        """What the user named."""
        return self.ckpt.target

    @property
    def subject(self) -> str:
        """What is held against what."""
        return f"{self.ckpt.subject} · against a manifest of {count(len(self.manifest.tensors), 'tensor')}"

    @property
    def unread(self) -> Mapping[str, str]:
        """Shards that could not be read."""
        return self.ckpt.unread

    @property
    def counts(self) -> Mapping[str, int]:
        """Files, tensors and bytes."""
        return self.ckpt.counts


def compare(
    ckpt: Checkpoint, manifest: Manifest, *, jobs: int | None = None, progress: Callable[[int, int], None] | None = None
) -> Verification:
    """Digest a checkpoint as it is now. Raises EvidenceError where a file cannot be read."""
    found = digests(ckpt, jobs=jobs or os.cpu_count() or 1, progress=progress)
    now = {
        name: Entry(tensor.dtype, tensor.shape, found[name], ckpt.holders[name])
        for name, tensor in ckpt.tensors.items()
    }
    return Verification(ckpt, manifest, now)
