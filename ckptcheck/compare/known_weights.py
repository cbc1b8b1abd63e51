"""Compares two sets of weights by digests alone: one side is a manifest or the output of ``ckptcheck identity``.

Each plain tensor is equal or not. Digests cannot say how far two tensors are apart, or why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec

from ckptcheck.compare.identity import SCHEMA, Identity, SetDifference, TensorIdentity, compare_sets, compute_root
from ckptcheck.compare.manifest import LARGEST, read_manifest
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.linter.evidence import EvidenceDefaults
from ckptcheck.linter.report import Section
from ckptcheck.text.file_io import expand_home, read_regular_file, read_whole_file, real_path
from ckptcheck.text.formatting import count

HEAD = re.compile(rb'\s{0,99}\{\s{0,99}"schema"\s{0,9}:\s{0,9}"ckptcheck-(manifest|identity)/')
"""The first bytes of both kinds of files."""


class IdentityFile(msgspec.Struct):
    """The output of ``ckptcheck identity --format json``."""

    schema: str
    target: str
    identity: str
    names: str
    tensors: dict[str, TensorIdentity]
    left_out: dict[str, str] = {}


@dataclass(frozen=True)
class KnownWeights:
    """A set of weights, described by its digests."""

    target: str
    """What the user named."""
    tensors: Mapping[str, TensorIdentity] = field(repr=False)
    names: str
    """Whose names the tensors have."""
    source: str = ""
    """The kind of file that holds the digests: ``a manifest`` or ``an identity file``; "" if this run computed them."""


@dataclass(frozen=True)
class KnownComparison(EvidenceDefaults):
    """Two sets of weights; at least one is known only by its digests."""

    first: KnownWeights
    second: KnownWeights
    kind: str = "known-weights"

    @cached_property
    def difference(self) -> SetDifference:
        """The tensors in which the second differs from the first."""
        return compare_sets(self.first.tensors, self.second.tensors)

    @property
    def equal(self) -> int:
        """Number of equal tensors."""
        return len(self.first.tensors.items() & self.second.tensors.items())

    @property
    def target(self) -> str:
        """Both sides, as the user named them."""
        return f"{self.first.target} ↔ {self.second.target}"

    @property
    def subject(self) -> str:
        """What is compared with what."""
        sides = [
            count(len(side.tensors), "tensor") + (f" of {side.source}" if side.source else "")
            for side in (self.first, self.second)
        ]
        return " ↔ ".join(sides) + " · by digests"

    @property
    def unread(self) -> Mapping[str, str]:
        """Nothing: a set with an unreadable tensor has no identity, so there is nothing to compare."""
        return {}

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of tensors of both sides."""
        return {"tensors": len(self.first.tensors) + len(self.second.tensors)}

    @property
    def identities(self) -> Mapping[str, str]:
        """The identities of both sides."""
        return {"first": compute_root(self.first.tensors), "second": compute_root(self.second.tensors)}

    @property
    def sections(self) -> tuple[Section, ...]:
        """What the comparison can tell."""
        known = " and ".join(side.target for side in (self.first, self.second) if side.source)
        line = (
            f"{self.equal:,} of {count(len(self.first.tensors.keys() | self.second.tensors.keys()), 'tensor')} are equal by"
            f" identity; {known} holds no values, so none were compared"
        )
        return (Section("Tensors", lines=(line,)),)

    @property
    def headline(self) -> str:
        """What it means that all are equal."""
        return f"{count(self.equal, 'tensor is', 'tensors are')} equal by identity; no values were compared"


def is_known_weights(target: str) -> bool:
    """Whether a target is a file on this disk that holds the digests of a set of weights."""
    if not target.endswith(".json"):
        return False
    try:
        path = Path(expand_home(target))
        if not path.is_file():
            return False
        return HEAD.match(read_regular_file(real_path(path), 256)) is not None
    except OSError:
        return False


def read_known_weights(target: str) -> KnownWeights:
    """Read a manifest, or the output of ``ckptcheck identity --format json``. Raises CkptcheckError, EvidenceError."""
    path = Path(expand_home(target))
    try:
        raw = read_whole_file(path, LARGEST)
    except OSError as error:
        raise CkptcheckError(f"{target} cannot be read: {error.strerror or error}") from error
    if (found := HEAD.match(raw)) is not None and found[1] == b"manifest":
        manifest = read_manifest(path)
        if manifest.identity is None:
            raise EvidenceError(
                f"{target} has no identity: an older version wrote it, or its weights have none",
                hint=f"ckptcheck verify CHECKPOINT {target} compares its stored tensors; or write it again",
            )
        return KnownWeights(target, manifest.weights, str(manifest.names), "a manifest")
    try:
        content = msgspec.json.decode(raw, type=IdentityFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CkptcheckError(
            f"{target} is not what ckptcheck identity writes: {error}",
            hint="write it with --format json, of one target",
        ) from error
    if content.schema != SCHEMA or not content.tensors:
        problem = "lists no tensor" if content.schema == SCHEMA else f"has the schema {content.schema!r}"
        raise CkptcheckError(f"{target} {problem}, so nothing can be compared with it")
    if compute_root(content.tensors) != content.identity:
        raise CkptcheckError(
            f"{target} is damaged: its identity is not that of the tensors that it lists", hint="write it again"
        )
    return KnownWeights(target, content.tensors, content.names, "an identity file")


def compare_known_weights(first: KnownWeights, second: KnownWeights) -> KnownComparison:
    """Compare two sets by their digests. Raises EvidenceError if their naming conventions differ."""
    if first.names != second.names:
        raise EvidenceError(
            f"{first.target} has {first.names}'s names and {second.target} {second.names}'s, so no tensor can be compared",
            hint="write the identity of the Megatron run with ckptcheck identity RUN --like CHECKPOINT --format json,"
            " and compare that file",
        )
    return KnownComparison(first, second)


def take_identity(found: Identity) -> KnownWeights:
    """Return a set whose digests this run computed."""
    return KnownWeights(found.target, found.tensors, found.names)
