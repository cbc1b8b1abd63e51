"""A manifest: what every tensor of a checkpoint was, so that it can be told later whether it still is.

Of a Megatron run it lists the tensors of the whole model and of its optimizer, wherever their chunks lie.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path

import msgspec

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.phrase import count, few, natural
from ckptcheck.values.digest import digest_of_zeros, digests
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.stream import Stream, streams_of, streams_of_run
from ckptcheck.writing import replace_file

SCHEMA = "ckptcheck-manifest/1"


class Entry(msgspec.Struct, frozen=True):
    """One tensor. digest: xxh3-128 of its bytes, hexadecimal. file: the shard that held it, or the folder of several."""

    dtype: str
    shape: tuple[int, ...]
    digest: str
    file: str

    @property
    def what(self) -> tuple[str, tuple[int, ...], str]:
        """All that makes two tensors the same."""
        return self.dtype, self.shape, self.digest

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor; 0 for a dtype that safetensors does not know."""
        return prod(self.shape) * (FORMATS[self.dtype].bits if self.dtype in FORMATS else 0) // 8


class Manifest(msgspec.Struct):
    """tensors: name → entry."""

    schema: str
    target: str
    tensors: dict[str, Entry]


def take(
    ckpt: Checkpoint | Megatron, *, jobs: int | None = None, progress: Callable[[int, int], None] | None = None
) -> Manifest:
    """Digest every tensor. Raises EvidenceError where some are missing or cannot be read: half a manifest vouches for nothing."""
    if absent := _absent(ckpt):
        raise EvidenceError(f"no manifest of {ckpt.target} can be taken: {absent}", hint="ckptcheck scan says more")
    streams = _streams(ckpt)
    found = digests(streams, jobs=jobs or os.cpu_count() or 1, progress=progress)
    return Manifest(SCHEMA, ckpt.target, {name: _entry(streams[name], found[name]) for name in sorted(found)})


def _absent(ckpt: Checkpoint | Megatron) -> str | None:
    """Say what of a checkpoint is not there, None if nothing is known to be missing."""
    if isinstance(ckpt, Megatron):
        ranks = {rank.folder for rank in ckpt.ranks}
        absent = [*(folder for folder in ckpt.rank_folders if folder not in ranks), *ckpt.unread]
        uneven = [key for key, cover in ckpt.covers.items() if cover.missing or cover.doubled or cover.beyond]
        if not absent and uneven:
            return f"no chunks, or too many, hold parts of {few(uneven)}"
    else:
        absent = [name for name in ckpt.loaded if name not in ckpt.shards or not ckpt.shards[name].readable]
    if absent:
        return f"{few(absent)} cannot be read"
    return None if ckpt.tensors else "it holds no tensor"


def _streams(ckpt: Checkpoint | Megatron) -> dict[str, Stream]:
    return streams_of_run(ckpt) if isinstance(ckpt, Megatron) else streams_of(ckpt)


def _entry(stream: Stream, digest: str) -> Entry:
    return Entry(stream.dtype, stream.shape, digest, stream.file)


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
    """The evidence of `verify`: a checkpoint now, and what it was when the manifest was taken.

    broken: tensors that are listed and cannot be read where they should lie, and why; they are not in `now`.
    """

    ckpt: Checkpoint | Megatron
    manifest: Manifest
    now: Mapping[str, Entry] = field(repr=False)
    broken: Mapping[str, str] = field(default_factory=dict, repr=False)
    kind: str = "manifest"

    @cached_property
    def renamed(self) -> Mapping[str, str]:
        """Name in the manifest that is gone → the new name of a tensor of equal dtype, shape and bytes.

        Each new name is given once. Tensors of zeros are left out: any two of one shape are equal.
        """
        new: dict[tuple[str, tuple[int, ...], str], list[str]] = {}
        for name in sorted(self.now.keys() - self.manifest.tensors.keys(), key=natural, reverse=True):
            new.setdefault(self.now[name].what, []).append(name)
        found = {}
        for name in sorted(self.manifest.tensors.keys() - self.now.keys() - self.broken.keys(), key=natural):
            was = self.manifest.tensors[name]
            if new.get(was.what) and was.digest != digest_of_zeros(was.nbytes):
                found[name] = new[was.what].pop()
        return found

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
    ckpt: Checkpoint | Megatron,
    manifest: Manifest,
    *,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Digest a checkpoint as it is now. Raises EvidenceError where a file cannot be read."""
    streams = _streams(ckpt)
    broken: dict[str, str] = {}
    found = digests(streams, jobs=jobs or os.cpu_count() or 1, progress=progress, broken=broken)
    return Verification(ckpt, manifest, {name: _entry(streams[name], found[name]) for name in found}, broken)
