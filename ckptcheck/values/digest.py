"""A digest of every tensor's bytes: xxh3-128, which is as fast as reading. It finds accidents, not forgeries."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ckptcheck.errors import EvidenceError

if TYPE_CHECKING:
    from ckptcheck.checkpoint.checkpoint import Checkpoint

READ = 1 << 23


def digests(ckpt: Checkpoint, *, jobs: int = 1, progress: Callable[[int, int], None] | None = None) -> dict[str, str]:
    """Return tensor → hexadecimal digest of its bytes in the file, for the loaded files.

    Raises EvidenceError where a file cannot be read to the end: a digest of half a tensor is none.
    """
    import xxhash

    total = sum(tensor.nbytes for tensor in ckpt.tensors.values())
    done = 0

    def digest(name: str) -> str:
        shard, tensor = ckpt.shards[ckpt.holders[name]], ckpt.tensors[name]
        state = xxhash.xxh3_128()
        at, end = (shard.data_start + offset for offset in tensor.data_offsets)
        while at < end:
            try:
                part = ckpt.source.read(shard.name, at, min(READ, end - at))
            except OSError as error:
                raise EvidenceError(f"cannot read {shard.name}: {error.strerror or error}") from error
            if not part:
                raise EvidenceError(f"{shard.name} ends before {name} does")
            state.update(part)
            at += len(part)
        return state.hexdigest()

    found = {}
    pool = ThreadPoolExecutor(jobs)
    try:
        for name, value in zip(ckpt.tensors, pool.map(digest, ckpt.tensors), strict=True):
            found[name] = value
            done += ckpt.tensors[name].nbytes
            if progress is not None:
                progress(done, total)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return found
