"""Changes that no writer makes: what a hostile file can say, and that nothing is allocated for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcheck.checkpoint.deltas import apply
from ckptcheck.checkpoint.deltas.apply import BrokenChange, apply_change
from ckptcheck.checkpoint.deltas.delta import Change, Delta, Span
from ckptcheck.checkpoint.source import Folder
from tests.factories.deltas import compress

LIMIT = 1 << 20


def put(folder: Path, raw: bytes, encoding: str, **keywords: Any) -> tuple[Delta, Change]:
    """A change whose bytes lie in a file."""
    (folder / "data").write_bytes(raw)
    change = Change(encoding, Span("data", 0, len(raw)), **keywords)
    return Delta("delta", Folder(folder, "delta"), changes={"x": (change,)}), change


def apply_to(folder: Path, raw: bytes, encoding: str, size: int = 64) -> np.ndarray[Any, Any]:
    state = np.arange(size, dtype=np.uint8)
    delta, change = put(folder, raw, encoding)
    apply_change(delta, change, state, "BF16", (size // 2,))
    return state


def refuse(folder: Path, raw: bytes, encoding: str, size: int = 64) -> str:
    with pytest.raises(BrokenChange) as error:
        apply_to(folder, raw, encoding, size)
    return error.value.kind


def test_a_bomb_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    import tracemalloc

    bomb = compress(bytes(1 << 28)).tobytes()
    assert len(bomb) < LIMIT
    for encoding in ("xor", "overwrite"):
        tracemalloc.start()
        assert refuse(tmp_path, bomb, encoding) == "size"
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 16 * LIMIT


@pytest.mark.parametrize("count", [2**31, 2**32 - 1, 5])
def test_a_count_beyond_what_is_there_allocates_nothing(count: int, tmp_path: Path) -> None:
    raw = np.uint32(count).tobytes() + bytes(20)
    assert refuse(tmp_path, compress(raw).tobytes(), "overwrite") == "damaged"


def test_a_frame_that_asks_for_a_window_of_gigabytes(tmp_path: Path) -> None:
    # magic, a descriptor without content size, a window of 2^41 bytes, and a last raw block of no bytes
    raw = b"\x28\xb5\x2f\xfd" + bytes([0x00, 31 << 3]) + bytes([1, 0, 0])
    assert refuse(tmp_path, raw, "xor") == "damaged"


@pytest.mark.parametrize("level", [1, 19])
def test_every_usual_level_is_read(level: int, tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    raw = zstandard.ZstdCompressor(level=level).compress(bytes(20 << 20))
    assert apply_to(tmp_path, raw, "xor", 20 << 20).size == 20 << 20


@pytest.mark.parametrize("raw", [b"", b"\0", b"PK\x03\x04", b"\x80\x04\x95", b"\x28\xb5\x2f\xfd"])
def test_what_is_no_frame(raw: bytes, tmp_path: Path) -> None:
    for encoding in ("xor", "overwrite"):
        assert refuse(tmp_path, raw, encoding) in ("damaged", "size")


def test_a_frame_that_breaks_off(tmp_path: Path) -> None:
    whole = compress(np.random.default_rng(1).bytes(64)).tobytes()
    assert apply_to(tmp_path, whole, "xor").size == 64
    for length in range(len(whole)):
        assert refuse(tmp_path, whole[:length], "xor") in ("damaged", "size")


def test_positions_of_32_bits_do_not_reach_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = compress(np.uint32(0).tobytes()).tobytes()
    monkeypatch.setattr(apply, "LONG_POSITIONS", 64)
    apply_to(tmp_path, places, "overwrite", 64)
    assert refuse(tmp_path, places, "overwrite", 66) == "width"
    monkeypatch.setattr(apply, "LONG_INDICES", 16)
    delta, change = put(tmp_path, b"", "indices", positions=Span("data", 0, 0), dtype="BF16", shape=(16,))
    apply_change(delta, change, np.zeros(32, np.uint8), "BF16", (16,))
    delta, change = put(tmp_path, b"", "indices", positions=Span("data", 0, 0), dtype="BF16", shape=(17,))
    with pytest.raises(BrokenChange) as error:
        apply_change(delta, change, np.zeros(34, np.uint8), "BF16", (17,))
    assert error.value.kind == "width"


def test_what_is_counted(tmp_path: Path) -> None:
    state = np.zeros(16, np.uint8)
    difference = bytes([1, 1, 0, 0, 0, 7] + [0] * 10)
    delta, change = put(tmp_path, compress(difference).tobytes(), "xor")
    assert apply_change(delta, change, state, "BF16", (8,)).elements == 2
    assert state.tobytes() == difference
    places = np.array([2, 1, 5, 9], "<u4").tobytes()
    delta, change = put(tmp_path, compress(places[:4] + places[4:12] + bytes([3, 7])).tobytes(), "overwrite")
    effect = apply_change(delta, change, state, "BF16", (8,))
    assert (effect.positions, effect.elements) == (2, 1)  # byte 5 has its value already


def test_an_index_with_numbers_that_no_integer_holds(tmp_path: Path) -> None:
    from ckptcheck.checkpoint.deltas.delta import normalize_version

    assert normalize_version("9" * 10_000) == "9" * 10_000
    assert normalize_version(True) is None
    assert normalize_version(json.loads("1e3")) is None
