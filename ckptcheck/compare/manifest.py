"""Manifests: digests of every tensor of a checkpoint, by which a later run verifies that nothing changed.

The manifest of a Megatron run lists the tensors of the whole model and of its optimizer, wherever their chunks lie.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.objects.address import is_object_address
from ckptcheck.checkpoint.objects.folder import read_object
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.rule import Skip
from ckptcheck.runners.runner import Local, Runner
from ckptcheck.text.file_io import read_whole_file, replace_file
from ckptcheck.text.formatting import count, join_truncated, natural_sort_key
from ckptcheck.values.digest import digest_tensors, digest_zeros
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.tensor_stream import TensorStream, open_run_streams, open_streams

if TYPE_CHECKING:
    from ckptcheck.linter.pictures import PictureMaker

SCHEMA = "ckptcheck-manifest/1"
LARGEST = 1 << 27
"""Bytes of the largest manifest that is read: one of 500,000 tensors has some 90 MB."""
FEWEST_TELLING = 8
"""Tensors from which on a manifest can be told to be of another model: each of fewer is listed."""
SAME_STRUCTURE = 0.9
"""Share of all names that have one shape on both sides from which on the architecture is called the same."""
MOST_KEPT = 0.1
"""Share of the tensors that another model may have in common with the one of the manifest: a frozen embedding, constants."""


class ManifestEntry(msgspec.Struct, frozen=True):
    """One tensor."""

    dtype: str
    shape: tuple[int, ...]
    # xxh3-128 of its bytes, hexadecimal.
    digest: str
    # The shard that held it, or the folder of several shards.
    file: str

    @property
    def identity(self) -> tuple[str, tuple[int, ...], str]:
        """What must be equal for two tensors to be the same."""
        return self.dtype, self.shape, self.digest

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor; 0 for a dtype that safetensors does not define."""
        return prod(self.shape) * (FORMATS[self.dtype].bits if self.dtype in FORMATS else 0) // 8


class Manifest(msgspec.Struct):
    """The content of a manifest file."""

    schema: str
    target: str
    # Name → entry.
    tensors: dict[str, ManifestEntry]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, as `write_manifest` writes it."""
        form: dict[str, Any] = msgspec.to_builtins(self)
        return form


def build_manifest(
    ckpt: Checkpoint | Megatron,
    *,
    jobs: int | None = None,
    runner: Runner | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Digest every tensor, in `jobs` threads or by a runner.

    Raises EvidenceError if a tensor is missing or unreadable: a partial manifest proves nothing.
    """
    if absent := describe_absent(ckpt):
        raise EvidenceError(
            f"no manifest of {ckpt.target} can be written: {absent}",
            hint=f"ckptcheck scan {ckpt.target} lists what is wrong",
        )
    streams = _streams(ckpt)
    digests = digest_tensors(ckpt.source, streams, runner=runner or Local(jobs), progress=progress)
    return Manifest(SCHEMA, ckpt.target, {name: _entry(streams[name], digests[name]) for name in sorted(digests)})


def describe_absent(ckpt: Checkpoint | Megatron) -> str | None:
    """Describe what a checkpoint lacks; None if nothing is known to be missing."""
    if isinstance(ckpt, Megatron):
        ranks = {rank.folder for rank in ckpt.ranks}
        absent = [*(folder for folder in ckpt.rank_folders if folder not in ranks), *ckpt.unread]
        uneven = [key for key, cover in ckpt.tiling_gaps.items() if cover.missing or cover.doubled or cover.beyond]
        if not absent and uneven:
            return f"no chunks, or too many, hold parts of {join_truncated(uneven)}"
    else:
        absent = [name for name in ckpt.model_files if name not in ckpt.shards or not ckpt.shards[name].readable]
    if absent:
        return f"{join_truncated(absent)} cannot be read"
    return None if ckpt.tensors else "it holds no tensor"


def _streams(ckpt: Checkpoint | Megatron) -> dict[str, TensorStream]:
    return open_run_streams(ckpt) if isinstance(ckpt, Megatron) else open_streams(ckpt)


def _entry(stream: TensorStream, digest: str) -> ManifestEntry:
    return ManifestEntry(stream.dtype, stream.shape, digest, stream.file)


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Write a manifest, one tensor a line. Raises CkptcheckError."""
    lines = (f"  {json.dumps(name)}: {msgspec.json.encode(entry).decode()}" for name, entry in manifest.tensors.items())
    text = (
        f'{{\n"schema": "{SCHEMA}",\n"target": {json.dumps(manifest.target)},\n"tensors": {{\n'
        + ",\n".join(lines)
        + "\n}\n}\n"
    )
    replace_file(path, text.encode("utf-8", "backslashreplace"))


def read_manifest(path: Path | str) -> Manifest:
    """Read a manifest, from a file or an object store (``s3://…``). Raises CkptcheckError if it is none or lists no tensor."""
    try:
        name = os.fspath(path)
        raw = read_object(name, LARGEST) if is_object_address(name) else read_whole_file(Path(path), LARGEST)
        manifest = msgspec.json.decode(raw, type=Manifest)
    except OSError as error:
        raise CkptcheckError(f"cannot read the manifest {path}: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CkptcheckError(
            f"{path} is not a manifest of ckptcheck: {error}", hint="write one with ckptcheck manifest"
        ) from error
    if manifest.schema != SCHEMA or not manifest.tensors:
        problem = "lists no tensor" if manifest.schema == SCHEMA else f"has the schema {manifest.schema!r}"
        raise CkptcheckError(f"{path} {problem}, so nothing can be verified with it")
    return manifest


@dataclass(frozen=True)
class Verification(EvidenceDefaults):
    """The evidence of `verify`: a checkpoint as it is now, and its manifest."""

    ckpt: Checkpoint | Megatron
    manifest: Manifest
    # Name → the tensor as it is now.
    current: Mapping[str, ManifestEntry] = field(repr=False)
    # Name of a listed tensor → why it cannot be read; these are not in `current`.
    unreadable: Mapping[str, str] = field(default_factory=dict, repr=False)
    kind: str = "manifest"

    @cached_property
    def renamed(self) -> Mapping[str, str]:
        """Name that is gone → new name of a tensor with equal dtype, shape and bytes.

        Each new name is used once. Tensors of zeros are left out, because any two of one shape are equal.
        """
        new: dict[tuple[str, tuple[int, ...], str], list[str]] = {}
        for name in sorted(self.current.keys() - self.manifest.tensors.keys(), key=natural_sort_key, reverse=True):
            new.setdefault(self.current[name].identity, []).append(name)
        new_names = {}
        for name in sorted(
            self.manifest.tensors.keys() - self.current.keys() - self.unreadable.keys(), key=natural_sort_key
        ):
            old = self.manifest.tensors[name]
            if new.get(old.identity) and old.digest != digest_zeros(old.nbytes):
                new_names[name] = new[old.identity].pop()
        return new_names

    @cached_property
    def other_model(self) -> str | None:
        """Say in a sentence that the manifest is of another model or another state of it; None where it is of this one.

        Judged by the tensors whose bytes occur once in the manifest: norms of ones are alike in any two models.
        """
        listed = self.manifest.tensors
        occurrences = Counter(entry.identity for entry in listed.values())
        telling = [
            name for name, entry in listed.items() if occurrences[entry.identity] == 1 and name not in self.unreadable
        ]
        kept = [name for name in telling if name in self.renamed or self._is_unchanged(name)]
        if len(telling) < FEWEST_TELLING or len(kept) > MOST_KEPT * len(telling):
            return None
        named = [name for name in listed if name in self.current]
        alike = [name for name in named if self.current[name].shape == listed[name].shape]
        cast = [name for name in alike if self.current[name].dtype != listed[name].dtype]
        if 2 * len(cast) > len(listed):
            return None  # the same model in another dtype
        source = f"the manifest, which was written of {self.manifest.target}, is of another"
        number = f"{len(kept) or 'none'} of {count(len(telling), 'tensor')}"
        same_values = f"{number} {'have' if len(kept) > 1 else 'has'} the same values"
        if len(alike) > SAME_STRUCTURE * len(listed.keys() | self.current.keys()):
            return f"{source} step or another training of this architecture: names and shapes agree, and {same_values}"
        new = len(self.current) - len(named)
        return (
            f"{source} model: of its {count(len(listed), 'tensor')}, {len(named):,} are here by name, {len(alike):,} of them "
            f"with the same shape; {count(new, 'tensor')} here {'is' if new == 1 else 'are'} not in it; {same_values}"
        )

    def list_picture_makers(self) -> Iterable[tuple[str, PictureMaker]]:
        """Return what the HTML report draws: the tensors by layer."""
        from ckptcheck.compare.manifest_picture import draw_verification

        return [("Tensors by layer", partial(draw_verification, self))]

    @property
    def headline(self) -> str:
        """How many tensors are unchanged; "" where not all are."""
        if self.current.keys() != self.manifest.tensors.keys() or not all(map(self._is_unchanged, self.current)):
            return ""
        return f"{count(len(self.current), 'tensor is', 'tensors are')} unchanged, byte for byte"

    def require_this_model(self) -> None:
        """Skip a rule that would list every tensor where the manifest is of another model. Raises Skip."""
        if self.other_model:
            raise Skip("the manifest is of another model or another state of it, see MAN001")

    def _is_unchanged(self, name: str) -> bool:
        return name in self.current and self.current[name].identity == self.manifest.tensors[name].identity

    @property
    def target(self) -> str:
        """What the user named."""
        return self.ckpt.target

    @property
    def subject(self) -> str:
        """What is compared with what."""
        return f"{self.ckpt.subject} · against a manifest of {count(len(self.manifest.tensors), 'tensor')}"

    @property
    def unread(self) -> Mapping[str, str]:
        """Shards that could not be read."""
        return self.ckpt.unread

    @property
    def counts(self) -> Mapping[str, int]:
        """Files, tensors and bytes."""
        return self.ckpt.counts


def verify_manifest(
    ckpt: Checkpoint | Megatron,
    manifest: Manifest,
    *,
    jobs: int | None = None,
    runner: Runner | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Digest a checkpoint as it is now, for comparison with its manifest. Raises EvidenceError if a file cannot be read."""
    streams = _streams(ckpt)
    unreadable: dict[str, str] = {}
    runner = runner or Local(jobs)
    digests = digest_tensors(ckpt.source, streams, runner=runner, progress=progress, broken=unreadable)
    return Verification(ckpt, manifest, {name: _entry(streams[name], digests[name]) for name in digests}, unreadable)
