"""The compiled kernel and numpy return the same maxima, and a package that was built without a compiler works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import ckptcheck.values.pattern_max as pattern_max
from ckptcheck.values.chunk_scan import scan_chunk
from ckptcheck.values.dtypes import FORMATS
from ckptcheck.values.pattern_max import CHUNK, max_patterns, max_patterns_numpy
from ckptcheck.values.stats import MIN_ZERO_RUN
from ckptcheck.values.worker import Piece, scan_pieces
from ckptcheck.verbs import doctor
from tests.factories.checkpoint_cases import CHECKPOINTS, ROOT

SOURCE = ROOT / "ckptcheck/values/pattern_max.c"


@pytest.fixture(scope="module")
def library(hook: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kernel") / "_pattern_max.so"
    if not hook.compile_library(SOURCE, path):
        pytest.skip("no C compiler here")
    return path


@pytest.fixture
def compiled(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_max, "LIBRARY", library)
    fresh = pattern_max._load_kernel.__wrapped__()
    assert fresh is not None
    monkeypatch.setattr(pattern_max, "_load_kernel", lambda: fresh)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", FORMATS)
def test_the_compiled_kernel_returns_what_numpy_returns(dtype: str) -> None:
    form, random = FORMATS[dtype], np.random.default_rng(5)
    width = form.bits // 8
    for size in (1, 2, 7, 64, 511, 4096 // width, 4097, CHUNK // width - 1, CHUNK // width, 2 * CHUNK // width + 3):
        for kind in ("any bits", "positive", "negative", "zero", "minus zero", "small"):
            held = np.frombuffer(random.bytes((size + 1) * width), form.unsigned)[1:].copy()
            sign = held.dtype.type(1 << (form.bits - 1))
            if kind == "positive":
                held &= ~sign
            elif kind == "negative":
                held |= sign
            elif kind != "any bits":
                held[:] = sign if kind == "minus zero" else 0
                held[-1] |= held.dtype.type(kind == "small")
            raw = held.view(np.uint8)
            assert max_patterns(raw, form)[0] == max_patterns_numpy(raw, form)[0], (size, kind)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("where", [0, 1, 511, 513, 4096 - 512, CHUNK - MIN_ZERO_RUN + 1, CHUNK - 512, 2 * CHUNK + 77])
def test_a_run_of_zeros_is_never_missed(where: int) -> None:
    """It may be anywhere, across tiles and chunks, at any offset. `find_zero_runs` looks for runs at the end."""
    for shift in range(0, 520, 13):
        raw = np.full(2 * CHUNK + 3 * MIN_ZERO_RUN, 7, np.uint8)
        raw[where + shift : where + shift + MIN_ZERO_RUN] = 0
        assert max_patterns(raw, FORMATS["U8"])[1], shift
        assert max_patterns_numpy(raw, FORMATS["U8"])[1], shift
    assert not max_patterns(np.full(3 * CHUNK, 7, np.uint8), FORMATS["U8"])[1]


@pytest.mark.usefixtures("compiled")
def test_a_single_large_pattern_is_found_anywhere() -> None:
    """In every place of a tile, and in the last, shorter tile."""
    form = FORMATS["BF16"]
    raw = np.zeros(4096 + 300, np.uint8)
    patterns = raw.view(np.uint16)
    for at in range(patterns.size):
        for pattern in (0x7FC1, 0xFFC1, 0x3F80, 0xBF80):
            patterns[at] = pattern
            assert max_patterns(raw, form)[0] == [pattern & 0x7FFF], at
        patterns[at] = 0


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("dtype", [dtype for dtype, form in FORMATS.items() if not form.fnuz])
def test_many_small_pieces_are_scanned_as_each_by_itself(dtype: str) -> None:
    """With NaN, Inf, constants, and zeros inside and at the ends, at any place of a file."""
    form, random = FORMATS[dtype], np.random.default_rng(7)
    width = form.bits // 8
    raw = np.frombuffer(random.bytes(64 * 4096 * width), np.uint8).copy()
    pieces = []
    for number in range(64):
        size = int(random.choice([1, 2, 63, 64, 65, 700, 4095])) * width
        begin = number * 4096 * width
        own = raw[begin : begin + size].view(form.unsigned)
        match number % 8:
            case 0:
                own[:] = own[0]
            case 1:
                own[: own.size // 2] = 0
            case 2:
                own[own.size // 3 :] = 0
            case 3:
                own[own.size // 4 : own.size // 2] = 0
            case 4:
                own &= own.dtype.type((1 << (form.bits - 2)) - 1)
        pieces.append(Piece(1000 + begin, size, dtype, number, 0))
    chunks = scan_pieces(raw, 1000, pieces)
    alone = [scan_chunk(raw[piece.begin - 1000 :][: piece.nbytes], dtype) for piece in pieces]
    assert chunks == alone


def test_a_library_of_another_version_is_not_used(
    hook: ModuleType, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pattern_max, "LIBRARY", library)
    assert pattern_max._load_kernel.__wrapped__() is not None
    other = tmp_path / "pattern_max.c"
    text = SOURCE.read_text(encoding="utf-8")
    assert text.count("return 2;") == 1
    other.write_text(text.replace("return 2;", "return 3;"), encoding="utf-8")
    assert hook.compile_library(other, tmp_path / "other.so")
    (tmp_path / "broken.so").write_bytes(b"\x7fELF")
    for name in ("other.so", "broken.so", "none.so"):
        monkeypatch.setattr(pattern_max, "LIBRARY", tmp_path / name)
        assert pattern_max._load_kernel.__wrapped__() is None, name


def test_doctor_says_whether_the_kernel_is_compiled(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, text in (
        (library, "✓ values are scanned by compiled code\n"),
        (tmp_path, "– values are scanned by numpy"),
    ):
        monkeypatch.setattr(pattern_max, "LIBRARY", path)
        monkeypatch.setattr(pattern_max, "_load_kernel", pattern_max._load_kernel.__wrapped__)
        assert text in doctor._describe_kernel()
        monkeypatch.undo()


@pytest.mark.parametrize("compiler", ["false", "no-such-compiler", "sh -c 'exit 3'"])
def test_without_a_compiler_nothing_is_left_behind(
    hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    monkeypatch.setenv("CC", compiler)
    assert not hook.compile_library(SOURCE, tmp_path / "_pattern_max.so")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("setting", [{"CKPTCHECK_PURE_PYTHON": "1"}, {"CC": "false"}])
@pytest.mark.slow
def test_a_wheel_without_the_kernel_installs_everywhere_and_works(tmp_path: Path, setting: dict[str, str]) -> None:
    environment = {**os.environ, **setting}
    process = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT, env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert "built without its compiled kernel" in process.stdout + process.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith((".so", ".c", "hatch_build.py"))]
        archive.extractall(tmp_path / "site")
    command = [
        sys.executable,
        "-P",
        "-m",
        "ckptcheck",
        "scan",
        str(CHECKPOINTS / "tiny-llama"),
        "--stats",
        "stats.json",
    ]
    outputs = []
    for path in (tmp_path / "site", ROOT):
        scan = subprocess.run(
            command, cwd=tmp_path, env={**environment, "PYTHONPATH": str(path)}, capture_output=True, text=True, check=True
        )  # fmt: skip
        outputs.append(
            (scan.stdout.replace("\n", " ").partition(" in ")[0], json.loads((tmp_path / "stats.json").read_text()))
        )
    assert outputs[0] == outputs[1]
