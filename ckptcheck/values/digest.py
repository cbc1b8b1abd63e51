"""Digests the bytes of every tensor with the shard digest, which is as fast as reading. It finds accidents, not forgeries.

The same pass sums the parts of plain tensors for the identity of the set (`tensor_part`): a plain tensor is digested once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from ckptcheck.checkpoint.source import Source, describe_version, find_nodes, list_rewritten
from ckptcheck.errors import EvidenceError
from ckptcheck.runners.runner import Runner
from ckptcheck.text.formatting import join_truncated
from ckptcheck.values.tensor_part import PartSums, Sums, TensorPart
from ckptcheck.values.tensor_stream import BrokenTensor, TensorStream

DIGEST = re.compile("[0-9a-f]{32}")
REMOTE_TENSORS = 8
"""Tensors that are read at a time if they are not on this machine; each holds 8 MiB."""


class DigestResult(msgspec.Struct):
    """The digest of a tensor, or why it has none."""

    digest: str = ""
    broken: str = ""
    """Why the checkpoint does not hold the tensor intact."""
    unread: str = ""
    """Why its bytes could not be read, though they may be intact."""
    hint: str | None = None
    sums: dict[str, Sums] = {}
    """Requested tensor → the addition of the bytes to its shard digest."""


class TensorDigests(msgspec.Struct, frozen=True):
    """Digests a tensor; `runners.runner.Work`, whose units are the names of tensors."""

    source: Source
    streams: Mapping[str, TensorStream]
    parts: Mapping[str, Sequence[TensorPart]] = msgspec.field(default_factory=dict)
    """Stream → the parts of it whose shard digests the same pass computes."""
    result_type = DigestResult

    @property
    def name(self) -> str:
        """The computation and its target, in words."""
        return f"digests of {self.source.target}"

    @property
    def remote_jobs(self) -> int:
        """How many tensors are read at a time if they are not on this machine."""
        return 0 if self.source.local is not None else REMOTE_TENSORS

    def compute(self, unit: str) -> DigestResult:
        """Digest a tensor block by block: the sums of its bytes in row-major order, and those of its parts."""
        from ckptcheck.values.shard_digest import format_sums

        stream = self.streams[unit]
        parts = PartSums(self.parts.get(unit, ()), stream.nbytes)
        try:
            whole = stream.sum_all() if parts.are_whole and stream.sum_all is not None else None
            if whole is not None:
                parts.whole = whole
            else:
                for block in stream.blocks():
                    parts.add(block)
        except BrokenTensor as error:
            return DigestResult(broken=error.message)
        except EvidenceError as error:
            return DigestResult(unread=error.message, hint=error.hint)
        return DigestResult(format_sums(parts.whole, stream.nbytes), sums=parts.sums)

    def describe(self, unit: str) -> str:
        """Name the tensor, and the tensors that it holds parts of."""
        stream = self.streams[unit]
        return repr((unit, stream.dtype, stream.shape, stream.file, [part.tensor for part in self.parts.get(unit, ())]))

    def weigh(self, unit: str) -> int:
        """Return the bytes of a tensor."""
        return self.streams[unit].nbytes

    def find_nodes(self, unit: str) -> frozenset[str]:
        """Return the nodes on whose disks the files lie."""
        return find_nodes(self.source, self.streams[unit].file)

    def list_objects(self) -> dict[str, str]:
        """Map each file to a state that changes when somebody replaces the file."""
        return {name: describe_version(self.source, name) for name in self.source.files}

    def fits(self, unit: str, result: DigestResult) -> bool:
        """Whether it has a digest or a reason, and sums of the unit's own parts."""
        is_digest = DIGEST.fullmatch(result.digest) is not None
        own = {part.tensor for part in self.parts.get(unit, ())}
        is_whole = (
            is_digest
            and result.sums.keys() == own
            and all(number >= 0 for pair in result.sums.values() for number in pair)
        )
        return is_whole or (not result.digest and bool(result.broken or result.unread))

    def is_whole(self, result: DigestResult) -> bool:
        """Whether the tensor could be read."""
        return not result.unread


def digest_tensors(
    source: Source,
    streams: Mapping[str, TensorStream],
    *,
    runner: Runner,
    progress: Callable[[int, int], None] | None = None,
    broken: dict[str, str] | None = None,
    parts: Mapping[str, Sequence[TensorPart]] | None = None,
    sums: dict[str, Sums] | None = None,
) -> dict[str, str]:
    """Return tensor → hexadecimal digest of its bytes in row-major order.

    source: the files of the streams. progress: called with the bytes digested so far and the bytes of all tensors.
    broken: receives tensor → reason for the tensors that the checkpoint does not hold intact; without it they are errors.
    parts: stream → parts of it that belong to plain tensors. sums: receives plain tensor → the two sums of its shard digest.
    Raises EvidenceError if a file cannot be read to the end: there is no digest of half a tensor.
    """
    from ckptcheck.values.shard_digest import add_sums

    total, done, digests = sum(stream.nbytes for stream in streams.values()), 0, {}
    added = sums if sums is not None else {}
    for name, result in runner.run(TensorDigests(source, streams, parts or {}), list(streams)):
        if result.unread:
            raise EvidenceError(result.unread, result.hint)
        if result.broken and broken is None:
            raise BrokenTensor(result.broken)
        if result.broken and broken is not None:
            broken[name] = result.broken
        else:
            digests[name] = result.digest
            for tensor, part in result.sums.items():
                added[tensor] = add_sums(added.get(tensor, (0, 0)), part)
        done += streams[name].nbytes
        if progress is not None:
            progress(done, total)
    if changed := list_rewritten(source, (stream.file for stream in streams.values())):
        # its header may be that of another tensor
        raise EvidenceError(f"{join_truncated(changed)} was replaced or written to while it was being read")
    return digests


def digest_zeros(nbytes: int) -> str:
    """Return the digest of `nbytes` zero bytes."""
    from ckptcheck.values.shard_digest import format_sums

    return format_sums((0, 0), nbytes)
