"""Manifests: digests of every tensor of a checkpoint, by which a later run verifies that nothing changed.

The manifest of a Megatron run lists the tensors of the whole model and of its optimizer, wherever their chunks lie.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ckptcheck.checkpoint.checkpoint import Checkpoint
from ckptcheck.checkpoint.objects.address import is_object_address
from ckptcheck.compare.identity import (
    Identity,
    StreamPlan,
    TensorIdentity,
    compute_root,
    describe_absent,
    plan_stream_identity,
)
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.runners.runner import Local, Runner
from ckptcheck.text.file_io import read_whole_file, replace_file
from ckptcheck.values.digest import digest_tensors
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.tensor_part import Sums
from ckptcheck.values.tensor_stream import TensorStream, open_streams

if TYPE_CHECKING:
    from ckptcheck.checkpoint.megatron.megatron import Megatron
    from ckptcheck.checkpoint.objects.folder import StoredOutput

SCHEMA = "ckptcheck-manifest/2"
LARGEST = 1 << 28
"""Bytes of the largest manifest that is read: a manifest of 500,000 tensors has about 180 MB."""


class ManifestEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tensor."""

    dtype: str
    shape: tuple[int, ...]
    # The shard digest of its bytes, as that of a tensor of the identity, hexadecimal.
    digest: str
    # The shard that held it, or the folder of several shards.
    file: str
    # The plain tensors of the identity whose elements it holds; None: its own name, if the manifest lists that.
    parts: tuple[str, ...] | None = None

    @property
    def content(self) -> tuple[str, tuple[int, ...], str]:
        """What must be equal for two tensors to be the same."""
        return self.dtype, self.shape, self.digest

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor; 0 for a dtype that safetensors does not define."""
        return prod(self.shape) * (FORMATS[self.dtype].bits if self.dtype in FORMATS else 0) // 8


class Manifest(msgspec.Struct, omit_defaults=True):
    """The content of a manifest file."""

    schema: str
    target: str
    # Name → entry.
    tensors: dict[str, ManifestEntry]
    # The identity of the weights, the same in every layout; None without one, and in manifests of older versions.
    identity: str | None = None
    # The naming convention of the identity: "Hugging Face" or "Megatron".
    names: str | None = None
    # Plain name → the tensor as the identity counts it.
    weights: dict[str, TensorIdentity] = {}

    def list_parts(self, name: str) -> tuple[str, ...]:
        """Return the plain tensors whose elements a listed tensor holds; () for the state of an optimizer."""
        parts = self.tensors[name].parts
        return tuple(part for part in (parts if parts is not None else (name,)) if part in self.weights)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, as `write_manifest` writes it."""
        form: dict[str, Any] = msgspec.to_builtins(self)
        return form


def build_manifest(
    ckpt: Checkpoint | Megatron,
    reference: Checkpoint | Megatron | None = None,
    *,
    jobs: int | None = None,
    runner: Runner | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Manifest:
    """Digest every tensor, in `jobs` threads or by a runner, and compute the identity of the weights in the same pass.

    reference: a Hugging Face checkpoint of the same model; its config determines the Hugging Face names of a Megatron
    run's tensors. Raises EvidenceError if a tensor is missing or unreadable: a partial manifest proves nothing.
    """
    if absent := describe_absent(ckpt):
        raise EvidenceError(
            f"no manifest of {ckpt.target} can be written: {absent}",
            hint=f"ckptcheck scan {ckpt.target} lists what is wrong",
        )
    try:
        plan = plan_stream_identity(ckpt, reference)
    except EvidenceError:
        if reference is not None:
            raise
        plan = None
    entries, identity = digest_checkpoint(ckpt, plan, runner or Local(jobs), progress)
    manifest = Manifest(SCHEMA, ckpt.target, dict(sorted(entries.items())))
    if identity is not None:
        manifest.identity, manifest.names, manifest.weights = identity.identity, identity.names, dict(identity.tensors)
    return manifest


def digest_checkpoint(
    ckpt: Checkpoint | Megatron,
    plan: StreamPlan | None,
    runner: Runner,
    progress: Callable[[int, int], None] | None,
    broken: dict[str, str] | None = None,
) -> tuple[dict[str, ManifestEntry], Identity | None]:
    """Return name → entry of every tensor, and the identity; None without a plan, or if a part of it was not read.

    broken: see `digest_tensors`. Raises EvidenceError.
    """
    streams = open_checkpoint_streams(ckpt)
    parts = plan.parts if plan is not None else {}
    sums: dict[str, Sums] = {}
    digests = digest_tensors(
        ckpt.source, streams, runner=runner, progress=progress, broken=broken, parts=parts, sums=sums
    )
    entries = {}
    for name, digest in digests.items():
        stream, held = streams[name], tuple(dict.fromkeys(part.tensor for part in parts.get(name, ())))
        own = None if held in ((), (name,)) else held
        entries[name] = ManifestEntry(stream.dtype, stream.shape, digest, stream.file, own)
    is_whole = plan is not None and digests.keys() >= parts.keys()
    return entries, plan.identity.name_set(sums) if plan is not None and is_whole else None


def open_checkpoint_streams(ckpt: Checkpoint | Megatron) -> dict[str, TensorStream]:
    """Return name → stream of the bytes of every tensor."""
    if isinstance(ckpt, Checkpoint):
        return open_streams(ckpt)
    from ckptcheck.compare.run_streams import open_run_streams

    return open_run_streams(ckpt)


def write_manifest(manifest: Manifest, output: Path | StoredOutput) -> None:
    """Write a manifest, one tensor a line, to a file or an object store. Raises CkptcheckError."""
    head: dict[str, Any] = {"schema": SCHEMA, "target": manifest.target}
    if manifest.identity is not None:
        head |= {"identity": manifest.identity, "names": str(manifest.names)}
    tables: dict[str, Mapping[str, msgspec.Struct]] = {"tensors": manifest.tensors}
    if manifest.weights:
        tables["weights"] = manifest.weights
    members = [f'"{key}": {json.dumps(value)}' for key, value in head.items()]
    for key, table in tables.items():
        lines = ",\n".join(
            f"  {json.dumps(name)}: {msgspec.json.encode(each).decode()}" for name, each in table.items()
        )
        members.append(f'"{key}": {{\n{lines}\n}}')
    text = "{\n" + ",\n".join(members) + "\n}\n"
    content = text.encode("utf-8", "backslashreplace")
    if isinstance(output, Path):
        replace_file(output, content)
    else:
        output.write(content)


def read_manifest(path: Path | str) -> Manifest:
    """Read a manifest, from a file or an object store (``s3://…``). Raises CkptcheckError if it is none or lists no tensor."""
    try:
        name = os.fspath(path)
        if is_object_address(name):
            from ckptcheck.checkpoint.objects.folder import read_object

            raw = read_object(name, LARGEST)
        else:
            raw = read_whole_file(Path(path), LARGEST)
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
    if manifest.identity is not None and compute_root(manifest.weights) != manifest.identity:
        raise CkptcheckError(
            f"{path} is damaged: its identity is not that of the weights that it lists", hint="fetch the manifest again"
        )
    return manifest
