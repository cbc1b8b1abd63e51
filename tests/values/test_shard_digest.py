"""The digest that shards add up to: one definition, computed in C, by numpy and by torch."""

from __future__ import annotations

import ctypes
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ckptcheck.live.runtime.worker.ckptcheck_worker import shard_digest as worker_digest
from ckptcheck.live.runtime.worker.ckptcheck_worker.shard_digest import (
    BLOCK,
    DIGITS,
    MASK,
    SEEDS,
    factors,
    format_sums,
    mix,
)
from ckptcheck.values import shard_digest
from ckptcheck.values.shard_digest import add_sums, sum_bytes, sum_rows_numpy, sum_shard
from tests.conftest import needs

KNOWN = {
    b"": "0" * 32,
    b"abc": "85943f573d0cd113ab2ad2deb01a221e",
    bytes(range(256)) * 20: "b8f3c93a334504c00fc932e5de084ffc",
}


def digest_slowly(raw: bytes) -> str:
    """Compute the digest as its definition says, digit by digit."""
    sums = [0, 0]
    for at in range(0, len(raw), 4):
        digit = int.from_bytes(raw[at : at + 4], "little")
        block, position = divmod(at // 4, DIGITS)
        for half in (0, 1):
            sums[half] += digit * factors(half)[position] * (mix(SEEDS[half], block) | 1)
    return format_sums((sums[0] & MASK, sums[1] & MASK), len(raw))


def random_bytes(number: int) -> NDArray[np.uint8]:
    return np.random.default_rng(number).integers(0, 256, number, np.uint8)


def sum_with_torch(array: NDArray[Any], offsets: tuple[int, ...] | None = None, shape: Any = None) -> tuple[int, int]:
    torch = pytest.importorskip("torch")
    first, second = worker_digest.sum_shard(torch.from_numpy(np.array(array)), offsets, shape).tolist()
    return first & MASK, second & MASK


@pytest.fixture(scope="module")
def kernel(hook: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    library = tmp_path_factory.mktemp("kernel") / "_shard_digest.so"
    if not hook.compile_library(Path(shard_digest.__file__).with_suffix(".c"), library):
        pytest.skip("no C compiler")
    return load_library(library)


def load_library(library: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_digest, "LIBRARY", library)
        shard_digest._load_kernels.cache_clear()
        loaded = shard_digest._load_kernels()
    shard_digest._load_kernels.cache_clear()
    assert loaded is not None
    return loaded


@pytest.mark.parametrize("number", [0, 1, 3, 4, 8, 100, BLOCK - 1, BLOCK, BLOCK + 5, 7 * BLOCK, 300_001])
def test_every_way_computes_the_definition(number: int, kernel: Any) -> None:
    raw = random_bytes(number)
    expected = digest_slowly(raw.tobytes())
    ways = {"bytes": sum_bytes(raw)}
    if number:
        ways |= {
            "C": kernel.add(raw.tobytes(), 1, number, number, 0, 0),
            "numpy": sum_rows_numpy(raw.reshape(1, -1), 0, 0),
        }
        ways["torch"] = sum_with_torch(raw)
    assert {name: format_sums(sums, number) for name, sums in ways.items()} == dict.fromkeys(ways, expected)


@pytest.mark.parametrize("shape", [(4097,), (64, 96), (33, 1001), (6, 50, 70), (3, 4, 5, 6), (3, 40_000)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
def test_shards_add_up_along_every_axis(shape: tuple[int, ...], dtype: Any, kernel: Any) -> None:
    random = np.random.default_rng(0)
    whole = (random.standard_normal(shape) * 50).astype(dtype)
    expected = sum_bytes(whole.tobytes())
    for axis, length in enumerate(shape):
        cuts = [0, *sorted({1, length // 3, length - 1} - {0}), length]
        totals = [(0, 0)] * 3
        for begin, end in pairwise(cuts):
            offsets = tuple(begin if number == axis else 0 for number in range(len(shape)))
            shard = whole[(slice(None),) * axis + (slice(begin, end),)]
            for way, sums in enumerate((sum_shard, sum_with_torch, lambda *a: sum_numpy(*a))):
                totals[way] = add_sums(totals[way], sums(shard, offsets, shape))
        assert totals == [expected] * 3


def sum_numpy(shard: NDArray[Any], offsets: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_digest, "_load_kernels", lambda: None)
        return sum_shard(shard, offsets, shape)


def test_flat_ranges_add_up_whatever_their_bounds() -> None:
    raw = random_bytes(100_000)
    cuts = [0, 1, 4099, 4100, 50_001, 99_998, 100_000]
    total = (0, 0)
    for begin, end in reversed(list(pairwise(cuts))):
        total = add_sums(total, sum_bytes(raw[begin:end], begin))
    assert total == sum_bytes(raw)


def test_boxes_of_a_grid_add_up() -> None:
    whole = np.random.default_rng(1).standard_normal((32, 48, 20)).astype(np.float32)
    total = (0, 0)
    for row in range(0, 32, 8):
        for column in range(0, 48, 16):
            for plane in (0, 10):
                box = whole[row : row + 8, column : column + 16, plane : plane + 10]
                total = add_sums(total, sum_shard(box, (row, column, plane), whole.shape))
    assert total == sum_shard(whole)


def changes(weight: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """What weights become by accident."""
    random = np.random.default_rng(7)
    flipped = weight.copy()
    flipped[:, 1::2] *= -1
    swapped = weight.copy()
    swapped[[3, 90]] = swapped[[90, 3]]
    halves = np.concatenate([weight[64:], weight[:64]])
    words = weight.reshape(-1, 2).copy()
    words[[0, 1000]] = words[[1000, 0]]
    return {
        "rows in another order": weight[random.permutation(len(weight))],
        "two rows exchanged": swapped,
        "halves exchanged": halves,
        "two words exchanged": words.reshape(weight.shape),
        "signs of every second column": flipped,
        "all signs": -weight,
        "zeros": np.zeros_like(weight),
        "1.5 throughout": np.full_like(weight, 1.5),
        "1.0 throughout": np.ones_like(weight),
        "transposed": np.ascontiguousarray(weight.T),
        "one bit": np.bitwise_xor(weight.view(np.uint32), np.eye(128, dtype=np.uint32)[:1]).view(np.float32),
    }


def test_what_an_xor_of_words_cannot_tell_apart_has_digests_of_its_own() -> None:
    """torch.hash_tensor, on which some delta syncs rest, is an XOR of words of 64 bits."""
    torch = needs("torch")
    weight = np.random.default_rng(3).standard_normal((128, 128)).astype(np.float32)
    contents = {"as it is": weight} | changes(weight)
    digests = {name: format_sums(sum_shard(values), values.nbytes) for name, values in contents.items()}
    assert len(set(digests.values())) == len(contents)
    if hasattr(torch, "hash_tensor"):
        xors = {name: int(torch.hash_tensor(torch.from_numpy(values))) for name, values in contents.items()}
        same = {name for name, xor in xors.items() if xor == xors["as it is"]}
        assert {"rows in another order", "two rows exchanged", "halves exchanged", "two words exchanged"} <= same
        assert xors["zeros"] == xors["1.5 throughout"]


def test_changes_of_signs_alone_do_not_collide() -> None:
    """The signs of bf16 are the highest bits of digits: the weakest case of the bound."""
    random = np.random.default_rng(5)
    bits = random.integers(0, 1 << 15, (64, 512), np.uint16)
    digests = {sum_bytes((bits | random.integers(0, 2, bits.shape, np.uint16) << 15).tobytes()) for _ in range(2000)}
    assert len(digests) == 2000
    assert len({half for sums in digests for half in sums}) == 4000


def test_constant_tensors_differ_from_each_other() -> None:
    digests = {format_sums(sum_bytes(np.full(4096, bits, np.uint16).tobytes()), 8192) for bits in range(1 << 12)}
    assert len(digests) == 1 << 12


def test_zeros_of_another_length_have_another_digest() -> None:
    assert len({format_sums(sum_bytes(bytes(number)), number) for number in range(200)}) == 200


def test_a_library_of_another_version_is_not_used(
    hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(shard_digest.__file__).with_suffix(".c").read_text(encoding="utf-8")
    other = tmp_path / "other.c"
    other.write_text(source.replace("return 3;", "return 0;"), encoding="utf-8")
    if not hook.compile_library(other, tmp_path / "other.so"):
        pytest.skip("no C compiler")
    assert ctypes.CDLL(str(tmp_path / "other.so")).shard_digest_version() == 0
    monkeypatch.setattr(shard_digest, "LIBRARY", tmp_path / "other.so")
    shard_digest._load_kernels.cache_clear()
    assert not shard_digest.is_compiled()
    assert sum_bytes(b"abc") == sum_rows_numpy(np.frombuffer(b"abc", np.uint8).reshape(1, -1), 0, 0)
    shard_digest._load_kernels.cache_clear()


@pytest.mark.parametrize("without", [("avx512f",), ("avx512f", "avx2")])
def test_older_processors_compute_the_same(without: tuple[str, ...], hook: ModuleType, tmp_path: Path) -> None:
    source = Path(shard_digest.__file__).with_suffix(".c").read_text(encoding="utf-8")
    for name in without:
        assert f'__builtin_cpu_supports("{name}")' in source
        source = source.replace(f'__builtin_cpu_supports("{name}")', "0")
    older = tmp_path / "older.c"
    older.write_text(source, encoding="utf-8")
    if not hook.compile_library(older, tmp_path / "older.so"):
        pytest.skip("no C compiler")
    raw = random_bytes(9 * BLOCK + 77).tobytes()
    assert load_library(tmp_path / "older.so").add(raw, 1, len(raw), len(raw), 0, 0) == sum_bytes(raw)


@pytest.mark.parametrize("number", [0, 1, BLOCK + 5, shard_digest.READ_BYTES, 3 * shard_digest.READ_BYTES + 4099])
def test_a_range_of_a_file_has_the_sums_of_its_bytes(number: int, kernel: Any, tmp_path: Path) -> None:
    path, raw = tmp_path / "file", random_bytes(number + 20).tobytes()
    path.write_bytes(raw)
    with path.open("rb") as file:
        for start in (0, 1, BLOCK, 3 * BLOCK + 8):
            assert kernel.read(file.fileno(), 7, number, start) == (sum_bytes(raw[7 : 7 + number], start), number)
        # of a file that was cut, what is left
        assert kernel.read(file.fileno(), 7, number + 1000, 0) == (sum_bytes(raw[7:]), number + 13)
    with path.open("ab") as file, pytest.raises(OSError, match="Bad file descriptor"):
        kernel.read(file.fileno(), 0, 1, 0)


@pytest.mark.parametrize("content", KNOWN)
def test_digests_never_change(content: bytes) -> None:
    assert format_sums(sum_bytes(content), len(content)) == KNOWN[content]
