"""A digest of every tensor's bytes: xxh3-128, which is as fast as reading. It finds accidents, not forgeries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from ckptcheck.values.stream import BrokenTensor, Stream

ZEROS = bytes(1 << 20)


def digests(
    streams: Mapping[str, Stream],
    *,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
    broken: dict[str, str] | None = None,
) -> dict[str, str]:
    """Return tensor → hexadecimal digest of its bytes in row-major order.

    broken: takes tensor → why, for those that are there no more; without it they are errors. Raises EvidenceError where a
    file cannot be read to the end: a digest of half a tensor is none.
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

    found = {}
    pool = ThreadPoolExecutor(jobs)
    try:
        for name, value in zip(streams, pool.map(digest, streams), strict=True):
            if value is not None:
                found[name] = value
            done += streams[name].nbytes
            if progress is not None:
                progress(done, total)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return found


def digest_of_zeros(nbytes: int) -> str:
    """Return the digest of so many zero bytes."""
    import xxhash

    state = xxhash.xxh3_128()
    for begin in range(0, nbytes, len(ZEROS)):
        state.update(ZEROS[: nbytes - begin])
    return state.hexdigest()
