"""The value pass: equal to a slow reference on random bits of every dtype, and unharmed by files that change."""

from __future__ import annotations

import math
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from cases import CHECKPOINTS, edit_tensors
from conftest import needs
from hypothesis import given, settings
from hypothesis import strategies as st

import ckptcheck.values.crew as crew
import ckptcheck.values.glance as glancing
import ckptcheck.values.measure as measuring
from ckptcheck import pack
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.checkpoint.tiling import BITS
from ckptcheck.report import Report
from ckptcheck.rule import Problem, Rule, Skip
from ckptcheck.run import run
from ckptcheck.values.compare import same_bytes
from ckptcheck.values.crew import Crew
from ckptcheck.values.dtypes import FORMATS, decode
from ckptcheck.values.glance import CHUNK
from ckptcheck.values.look import look
from ckptcheck.values.measure import attach
from ckptcheck.values.stats import RUN, Values, joined
from ckptcheck.values.worker import Batch

RULES = pack.load()
FLOATS = ("F64", "F32", "F16", "BF16", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
TORCH = {
    "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64",
}  # fmt: skip


def slow(raw: bytes, dtype: str) -> tuple[int, int, int, int, float]:
    """Element by element, by the definition of the format: nan, inf, first of each, largest finite magnitude."""
    bits, exponent_bits, bias = {
        "F64": (64, 11, 1023), "F32": (32, 8, 127), "F16": (16, 5, 15), "BF16": (16, 8, 127), "F8_E5M2": (8, 5, 15),
        "F8_E4M3": (8, 4, 7), "F8_E8M0": (8, 8, 127), "F8_E4M3FNUZ": (8, 4, 8), "F8_E5M2FNUZ": (8, 5, 16),
    }[dtype]  # fmt: skip
    sign_bits = 0 if dtype == "F8_E8M0" else 1
    mantissa_bits = bits - sign_bits - exponent_bits
    nan = inf = 0
    first_nan = first_inf = -1
    largest = 0.0
    for index in range(len(raw) * 8 // bits):
        pattern = int.from_bytes(raw[index * bits // 8 : (index + 1) * bits // 8], "little")
        bare = pattern & ((1 << (bits - sign_bits)) - 1)
        exponent, mantissa = bare >> mantissa_bits, bare & ((1 << mantissa_bits) - 1)
        full = exponent == (1 << exponent_bits) - 1
        if dtype.endswith("FNUZ"):
            special = "nan" if pattern == 0x80 else ""
        elif dtype == "F8_E8M0":
            special = "nan" if pattern == 0xFF else ""
        elif dtype == "F8_E4M3":
            special = "nan" if bare == 0x7F else ""
        else:
            special = ("inf" if mantissa == 0 else "nan") if full else ""
        if special == "nan":
            nan += 1
            first_nan = index if first_nan < 0 else first_nan
        elif special == "inf":
            inf += 1
            first_inf = index if first_inf < 0 else first_inf
        elif dtype == "F8_E8M0":
            largest = max(largest, 2.0 ** (exponent - bias))
        else:
            share = mantissa / (1 << mantissa_bits)
            value = math.ldexp(share, 1 - bias) if exponent == 0 else math.ldexp(1 + share, exponent - bias)
            largest = max(largest, value)
    return nan, inf, first_nan, first_inf, largest


def fast(raw: bytes, dtype: str) -> tuple[int, int, int, int, float]:
    from ckptcheck.values.dtypes import magnitude

    seen = look(np.frombuffer(raw, np.uint8), dtype)
    return seen.nan, seen.inf, seen.first_nan, seen.first_inf, magnitude(dtype, seen.top)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_fast_look_equals_a_slow_one_on_random_bits(
    dtype: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(glancing, "_compiled", lambda: None)
    random = np.random.default_rng(7)
    for size in (8, 64, 1000, 4096):
        raw = random.bytes(size)
        assert fast(raw, dtype) == slow(raw, dtype)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", FLOATS)
def test_rare_patterns(dtype: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Signalling and quiet NaN, payloads, both infinities, both zeros, subnormals, the largest finite number."""
    if not compiled:
        monkeypatch.setattr(glancing, "_compiled", lambda: None)
    width = FORMATS[dtype].bits // 8
    exponent = {8: 0x7C, 16: 0x7C00 if dtype == "F16" else 0x7F80, 32: 0x7F800000, 64: 0x7FF0 << 48}[8 * width]
    sign = 1 << (8 * width - 1)
    patterns = {
        0,
        1,
        exponent - 1,
        exponent,
        exponent + 1,
        exponent | 3,
        sign,
        sign + 1,
        2 * sign - 1,
        sign - 1,
        0x7F,
        0x80,
        0xFF,
    }
    patterns |= {sign | exponent, sign | (exponent + 1)}
    for pattern in sorted(patterns):
        for place in (0, 3, 7):
            raw = bytearray(8 * width)
            raw[place * width : (place + 1) * width] = pattern.to_bytes(width, "little")
            assert fast(bytes(raw), dtype) == slow(bytes(raw), dtype), hex(pattern)


@pytest.mark.parametrize("dtype", FLOATS)
def test_all_values_of_a_dtype_are_those_of_torch(dtype: str) -> None:
    needs("torch")
    import torch

    width = FORMATS[dtype].bits // 8
    raw = bytes(range(256)) if width == 1 else np.random.default_rng(1).bytes(width * 4096)
    ours = decode(dtype, np.frombuffer(raw, FORMATS[dtype].unsigned))
    theirs = torch.frombuffer(bytearray(raw), dtype=getattr(torch, TORCH[dtype])).to(torch.float64).numpy()
    with np.errstate(invalid="ignore"):
        assert np.array_equal(ours.astype(np.float64), theirs, equal_nan=True)


def test_every_dtype_of_safetensors_is_known() -> None:
    assert FORMATS.keys() == BITS.keys()
    for dtype in FORMATS:
        raw = np.frombuffer(bytes(range(64)), np.uint8)
        assert look(raw, dtype).top > 0


@pytest.mark.parametrize("compiled", [True, False])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_zero_runs_are_exact(compiled: bool, data: Any) -> None:
    size = data.draw(st.integers(1, 3 * RUN))
    raw = np.full(size, 1, np.uint8)
    for _ in range(data.draw(st.integers(0, 3))):
        begin = data.draw(st.integers(0, size - 1))
        raw[begin : begin + data.draw(st.integers(1, 2 * RUN))] = 0
    shift = data.draw(st.integers(0, 7))
    held = np.concatenate([np.ones(shift, np.uint8), raw])[shift:]
    edges = np.flatnonzero(np.diff(np.concatenate([[1], (raw != 0).astype(int), [1]])))
    runs = [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    wanted = [(a, b) for a, b in runs if b - a >= RUN or a == 0 or b == size]
    with nullcontext() if compiled else patch.object(glancing, "_compiled", lambda: None):
        assert look(held, "U8").zero_runs == wanted


def test_zero_runs_join_across_pieces() -> None:
    assert joined([(0, 600), (600, 1200), (2000, 2500), (5000, 6100)]) == [(0, 1200), (5000, 6100)]


def test_a_large_tensor_is_the_same_in_pieces() -> None:
    random = np.random.default_rng(3)
    raw = random.bytes(3 * CHUNK + 100 * 2)
    whole = fast(raw, "BF16")
    assert whole == slow(raw, "BF16")
    assert whole[0] > 100
    with patch.object(glancing, "_compiled", lambda: None):
        assert fast(raw, "BF16") == whole


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", tmp_path / "ckpt"))


def scan(folder: Path, **options: Any) -> Report:
    return run(attach(open_checkpoint(str(folder)), **options), RULES)


def values(folder: Path, **options: Any) -> Values:
    return attach(open_checkpoint(str(folder)), **options).values


def test_reading_mapping_and_cutting_give_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit_tensors(
        folder / "model-00001-of-00003.safetensors",
        {"odd": {"dtype": "BF16", "shape": [7, 301]}, "b": {"dtype": "I8", "shape": [3]}},
    )
    plain = values(folder)
    assert len(plain.tensors) == 32
    monkeypatch.setattr(measuring, "WORTH_A_CREW", 0)
    for size in (1 << 26, 512, 64):
        monkeypatch.setattr(measuring, "BATCH", size)
        monkeypatch.setattr(measuring, "READ", size)
        for options in ({"jobs": 1}, {"jobs": 2}, {"jobs": 2, "use_mmap": False}):
            assert values(folder, **options) == plain, (size, options)
        ckpt = attach(open_checkpoint(str(folder)), jobs=2, early=True)
        assert ckpt.values == plain
        ckpt.release()


def test_processes_begin_before_anybody_asks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are given as much as fits into their pipes; what they were given is theirs, and the rest is not lost."""
    monkeypatch.setattr(measuring, "WORTH_A_CREW", 0)
    monkeypatch.setattr(measuring, "BATCH", 64)
    handed: list[Batch] = []
    monkeypatch.setattr(
        Crew, "_give", lambda self, process, batch, give=Crew._give: (give(self, process, batch), handed.append(batch))
    )
    plain = values(folder, use_mmap=False)
    ckpt = attach(open_checkpoint(str(folder)), jobs=2, early=True)
    assert len(handed) == 2 * crew.FIRST
    assert ckpt.values == plain
    ckpt.release()
    monkeypatch.setattr(crew, "PIPE", 100)
    handed.clear()
    ckpt = attach(open_checkpoint(str(folder)), jobs=2, early=True)
    assert len(handed) < 2 * crew.FIRST
    assert ckpt.values == plain
    ckpt.release()


def test_no_process_is_left_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def children() -> set[str]:
        return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())

    monkeypatch.setattr(measuring, "WORTH_A_CREW", 0)
    before = children()
    assert values(folder, jobs=2).tensors
    assert children() == before
    ckpt = attach(open_checkpoint(str(folder)), jobs=2, early=True)
    assert len(children() - before) == 2
    assert ckpt.values.tensors
    ckpt.release()
    assert children() == before


def test_rules_on_headers_look_while_values_are_read() -> None:
    """Every rule is asked whether it applies before any looks; those on values look last; the report keeps the rules' order."""
    done: list[str] = []

    def made(code: str, on: str) -> Rule:
        def when(_: object) -> bool:
            done.append(f"{code}?")
            return code != "A3"

        def look(_: object) -> Iterator[Problem]:
            done.append(code)
            yield Problem(code)

        return Rule(code=code, name=code.lower(), severity="error", check=look, on=on, when=when)

    rules = [made("A1", "values"), made("A2", "checkpoint"), made("A3", "checkpoint"), made("A4", "values")]
    report = run(open_checkpoint(str(CHECKPOINTS / "tiny-llama")), rules)
    assert done == ["A1?", "A2?", "A3?", "A4?", "A2", "A1", "A4"]
    assert [finding.code for finding in report.findings] == ["A1", "A2", "A4"]


def test_what_a_file_no_longer_holds_is_not_equal(folder: Path) -> None:
    ckpt = open_checkpoint(str(folder))
    first, second = "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"
    assert same_bytes(ckpt, first, first)
    assert not same_bytes(ckpt, first, second)
    with (folder / ckpt.holders[first]).open("r+b") as file:
        file.truncate(ckpt.shards[ckpt.holders[first]].data_start)
    with pytest.raises(Skip, match="shrank while it was being read"):
        same_bytes(ckpt, first, first)


def test_progress_reaches_the_end(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    values(folder, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (8032, 8032)
    assert seen == sorted(seen)


@pytest.mark.parametrize("mapped", [False, True])
def test_a_file_that_shrinks_is_a_finding(folder: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool) -> None:
    """It shrinks after its header was read; where it is mapped, the worker that maps it dies and we do not."""
    if mapped:
        monkeypatch.setattr(measuring, "WORTH_A_CREW", 0)
    ckpt = open_checkpoint(str(folder))
    assert len(ckpt.shards) == 3
    with (folder / "model-00002-of-00003.safetensors").open("r+b") as file:
        file.truncate(900)
    report = run(attach(ckpt), [rule for rule in RULES if rule.code.startswith("VAL")])
    assert [(finding.code, finding.file, finding.message) for finding in report.findings] == [
        ("VAL011", "model-00002-of-00003.safetensors", "the file shrank while it was being read")
    ]


def test_a_worker_killed_by_sigbus_is_not_our_death(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The map exists and the file shrinks under it: what SIGBUS is for."""
    big = folder / "model-00001-of-00003.safetensors"
    edit_tensors(big, {"big": {"dtype": "F32", "shape": [1 << 20]}})
    monkeypatch.setattr(measuring, "WORTH_A_CREW", 0)
    monkeypatch.setattr(measuring, "BATCH", 1 << 16)
    cut = []

    def shrink(done: int, total: int) -> None:
        if not cut:
            cut.append(done)
            with big.open("r+b") as file:
                file.truncate(1 << 18)

    found = values(folder, jobs=1, progress=shrink)
    assert found.shrunk == {big.name: "the file shrank while it was being read"}
    assert {stats.shard for stats in found.tensors.values()} == {
        f"model-0000{number}-of-00003.safetensors" for number in (2, 3)
    }


def test_a_file_that_is_written_to_makes_the_scan_incomplete(folder: Path) -> None:
    second = folder / "model-00002-of-00003.safetensors"

    def touch(done: int, total: int) -> None:
        os.utime(second, ns=(1, done))

    report = scan(folder, progress=touch)
    assert report.verdict == "incomplete"
    assert "it was replaced or written to while it was being read" in report.crashed[0][1]
    assert not report.passed


def test_a_disk_that_fails_makes_the_scan_incomplete(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ckpt = open_checkpoint(str(folder))
    assert ckpt.shards
    read = ckpt.source.read

    def broken(name: str, start: int, length: int) -> bytes:
        if "00002" in name:
            raise OSError(5, "Input/output error")
        return read(name, start, length)

    monkeypatch.setattr(ckpt.source, "read", broken)
    report = run(attach(ckpt), RULES)
    assert report.verdict == "incomplete"
    assert {error for _, error in report.crashed} == {
        "could not read model-00002-of-00003.safetensors: Input/output error"
    }


def test_headers_only_skips_value_rules_and_does_not_pass_them(folder: Path) -> None:
    command = [sys.executable, "-m", "ckptcheck", "scan", str(folder), "--format", "json"]
    import json

    plain = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    headers = json.loads(
        subprocess.run([*command, "--headers-only"], capture_output=True, text=True, check=True).stdout
    )
    codes = {code for code in plain["passed"] if code.startswith("VAL")}
    assert {"VAL001", "VAL005", "VAL008"} <= codes
    skipped = {entry["code"] for entry in headers["skipped"] if entry["reason"] == "--headers-only"}
    assert {code for code in skipped if code.startswith("VAL")} == codes
    assert not codes & set(headers["passed"])


def test_any_single_flipped_top_exponent_bit_is_seen(smollm2: Path, tmp_path: Path) -> None:
    import damage

    folder = damage.linked_copy(smollm2, tmp_path / "flipped")
    ckpt = open_checkpoint(str(folder))
    name = "model.layers.12.mlp.gate_proj.weight"
    shard = ckpt.shards[ckpt.holders[name]]
    raw = bytearray((folder / shard.name).read_bytes())
    at = shard.data_start + shard.tensors[name].data_offsets[0] + 2 * 12345 + 1
    assert not raw[at] & 0x40, "the bit is clear in a weight below 2"
    raw[at] |= 0x40
    damage.replace(folder / shard.name, bytes(raw))
    found = scan(folder).findings
    assert [(finding.code, finding.key) for finding in found] == [("VAL006", name)]


@pytest.mark.parametrize("fill", ["nan", "block", "zero", "half"])
def test_damaged_values_of_a_real_model_are_named(smollm2: Path, tmp_path: Path, fill: str) -> None:
    import damage

    folder = damage.linked_copy(smollm2, tmp_path / fill)
    ckpt = open_checkpoint(str(folder))
    name = "model.layers.21.self_attn.o_proj.weight"
    shard = ckpt.shards[ckpt.holders[name]]
    raw = bytearray((folder / shard.name).read_bytes())
    begin, end = (shard.data_start + offset for offset in shard.tensors[name].data_offsets)
    match fill:
        case "nan":
            raw[begin + 200 : begin + 202] = struct.pack("<H", 0x7FC1)
        case "block":
            raw[begin + 70_000 : begin + 74_096] = bytes(4096)
        case "zero":
            raw[begin:end] = bytes(end - begin)
        case "half":
            raw[(begin + end) // 2 : end] = raw[begin : (begin + end) // 2]
    damage.replace(folder / shard.name, bytes(raw))
    code = {"nan": "VAL001", "block": "VAL005", "zero": "VAL004", "half": "VAL010"}[fill]
    assert [(finding.code, finding.key) for finding in scan(folder).findings] == [(code, name)]


def test_a_real_model_is_sound(smollm2: Path) -> None:
    report = scan(smollm2)
    assert report.findings == ()
    assert report.skipped == ()
    assert sum(code.startswith("VAL") for code in report.passed) >= 11


def test_stats_are_a_table(folder: Path, tmp_path: Path) -> None:
    import json

    from safetensors.numpy import load_file

    file = tmp_path / "stats.json"
    command = [sys.executable, "-m", "ckptcheck", "scan", str(folder), "--stats", str(file)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    rows = json.loads(file.read_text(encoding="utf-8"))
    assert {row["name"] for row in rows} == values(folder).tensors.keys()
    head = next(row for row in rows if row["name"] == "lm_head.weight")
    assert head == {
        "target": str(folder), "name": "lm_head.weight", "shard": "model-00001-of-00003.safetensors", "dtype": "F32",
        "shape": [32, 8], "absmax": head["absmax"], "nan": 0, "inf": 0, "first_nan": -1, "first_inf": -1, "zero": False,
        "constant": False, "row_mean_abs": head["row_mean_abs"], "row_max_abs": head["row_max_abs"], "row_std": head["row_std"],
    }  # fmt: skip
    weight = load_file(folder / head["shard"])["lm_head.weight"]
    assert np.allclose(head["row_mean_abs"], np.abs(weight).mean(1), rtol=1e-5)
    assert np.allclose(head["row_max_abs"], np.abs(weight).max(1), rtol=1e-5)
    assert np.allclose(head["row_std"], weight.std(1, ddof=1), rtol=1e-5)
    with_rows = {row["name"] for row in rows if row["row_std"] is not None}
    assert with_rows == {"lm_head.weight", "model.embed_tokens.weight"}
    assert len({tuple(row) for row in rows}) == 1, "every record has the same keys"
    assert 0.03 < head["absmax"] < 0.2
    assert subprocess.run([*command, "--headers-only"], capture_output=True, check=False).returncode == 2
