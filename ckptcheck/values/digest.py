"""Digests the bytes of every tensor with xxh3-128, which is as fast as reading. It finds accidents, not forgeries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from ckptcheck.values.tensor_stream import BrokenTensor, TensorStream

ZEROS = bytes(1 << 20)


def digest_tensors(
    streams: Mapping[str, TensorStream],
    *,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
    broken: dict[str, str] | None = None,
) -> dict[str, str]:
    """Return tensor → hexadecimal digest of its bytes in row-major order.

    progress: called with the bytes digested so far and the bytes of all tensors.
    broken: receives tensor → reason for the tensors that the checkpoint does not hold intact; without it they are errors.
    Raises EvidenceError if a file cannot be read to the end: there is no digest of half a tensor.
    """
    import xxhash

    total = sum(stream.nbytes for stream in streams.values())
    done = 0

    def digest(name: str) -> str | None:
        state = xxhash.xxh3_128()
        try:
            for block in streams[name].blocks():
                state.update(block)
        except BrokenTensor as error:
            if broken is None:
                raise
            broken[name] = error.message
            return None
        return state.hexdigest()

    digests = {}
    pool = ThreadPoolExecutor(jobs)
    try:
        for name, value in zip(streams, pool.map(digest, streams), strict=True):
            if value is not None:
                digests[name] = value
            done += streams[name].nbytes
            if progress is not None:
                progress(done, total)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return digests


def digest_zeros(nbytes: int) -> str:
    """Return the digest of `nbytes` zero bytes."""
    import xxhash

    state = xxhash.xxh3_128()
    for begin in range(0, nbytes, len(ZEROS)):
        state.update(ZEROS[: nbytes - begin])
    return state.hexdigest()
