"""One digest on both sides, and no change that it does not see."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ckptcheck.live.runtime.engines.digest import digest
from ckptcheck.live.runtime.worker.ckptcheck_worker import shard_digest as digest_module

ROW = digest_module.BLOCK


def noise(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 4095, ROW - 1, ROW, ROW + 1, 7 * ROW, 7 * ROW + 3, 65 * ROW + 5])
def test_both_sides_agree_on_any_number_of_bytes(size: int) -> None:
    torch = pytest.importorskip("torch")
    data = noise(size + 1)
    for begin in (0, 1):  # also where the bytes do not lie on a word
        part = data[begin : begin + size]
        assert digest_module.digest(torch.from_numpy(part)) == digest(part)


def test_both_sides_agree_on_dtypes_and_strides() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.float64,
        torch.int8,
        torch.float8_e4m3fn,
        torch.bool,
    ):
        wide = torch.randint(0, 2, (37, 900, 3)).to(dtype)
        for tensor in (wide, wide.transpose(0, 1), wide[:, ::2], wide[3:4].expand(30, 900, 3), wide[0, 0, 0]):
            there = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
            assert digest_module.digest(tensor) == digest(there), (dtype, tensor.shape, tensor.stride())


def test_many_at_once_are_as_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    tensors = [torch.randint(0, 99, (size, 7)) for size in (3, 5000, 0, 40)] * 5
    alone = [digest_module.digest(tensor) for tensor in tensors]
    for cpus in (digest_module.CPUS[:1], digest_module.CPUS, digest_module.CPUS * 4):
        monkeypatch.setattr(digest_module, "CPUS", cpus)
        assert digest_module.digests(tensors) == alone
    assert digest_module.digests([]) == []


def test_a_digest_is_what_it_was() -> None:
    assert digest(np.arange(1 << 16, dtype=np.uint32)) == "31bc0ea660f05e20565ce2d5435a88fc"


def test_every_flip_of_a_bit_is_seen() -> None:
    data = noise(3 * ROW + 21)
    before = digest(data)
    draw = random.Random(1)
    seen = {before}
    for _ in range(60):
        at, bit = draw.randrange(data.size), draw.randrange(8)
        data[at] ^= 1 << bit
        after = digest(data)
        assert after[:16] != before[:16]
        assert after[16:] != before[16:]
        seen.add(after)
        data[at] ^= 1 << bit
    assert len(seen) > 58  # the same flip may be drawn twice


def test_flips_of_signs_do_not_cancel() -> None:
    """A sum of products modulo 2^64 would lose pairs of highest bits: two signs of every fourth bfloat16."""
    data = noise(2 * ROW).view(np.uint64)
    before = digest(data)
    draw = random.Random(2)
    for number in (2, 4, 64):
        changed = data.copy()
        changed[draw.sample(range(data.size), number)] ^= np.uint64(1 << 63)
        assert digest(changed) != before


def test_exchanged_and_moved_parts_are_seen() -> None:
    data = noise(10 * ROW)
    digests = {digest(data)}
    for begin, other in ((0, 1), (0, ROW // 8), (ROW // 8, 2 * ROW // 8)):
        words = data.copy().view(np.uint64)
        words[begin], words[other] = words[other], words[begin]
        digests.add(digest(words))
    digests.add(digest(np.roll(data, ROW)))
    digests.add(digest(np.roll(data, 8)))
    assert len(digests) == 6


def test_the_length_counts() -> None:
    assert len({digest(np.zeros(size, np.uint8)) for size in range(20)}) == 20
