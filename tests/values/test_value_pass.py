"""The value pass gives the same however it reads, and reports files that change or cannot be read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ckptcheck.values.value_pass as value_pass
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.linter import rule_loader
from ckptcheck.linter.rule import Problem, Rule
from ckptcheck.linter.runner import run_rules
from ckptcheck.values.value_pass import ValuePass
from tests.factories.checkpoint_cases import CHECKPOINTS, edit_tensors
from tests.factories.value_cases import read_values, run_all_rules, start_value_pass

RULES = rule_loader.load_rules()


@pytest.mark.slow
def test_reading_mapping_and_cutting_give_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit_tensors(
        folder / "model-00001-of-00003.safetensors",
        {"odd": {"dtype": "BF16", "shape": [7, 301]}, "b": {"dtype": "I8", "shape": [3]}},
    )
    plain = read_values(folder)
    assert len(plain.tensors) == 32
    monkeypatch.setattr(value_pass, "MIN_BYTES_FOR_WORKERS", 0)
    for size in (1 << 26, 512, 64):
        monkeypatch.setattr(value_pass, "MAX_BATCH_BYTES", size)
        monkeypatch.setattr(value_pass, "READ_BYTES", size)
        for options in ({"jobs": 1}, {"jobs": 2}, {"jobs": 2, "use_mmap": False}):
            assert read_values(folder, **options) == plain, (size, options)
        reader, ckpt = start_value_pass(folder)
        assert ckpt.values == plain
        reader.close()


def test_rules_on_headers_run_while_values_are_read() -> None:
    """The runner asks every rule whether it applies, then runs those on headers, then those on values; the report is in order."""
    events: list[str] = []

    def make_rule(code: str, on: str) -> Rule:
        def when(_: object) -> bool:
            events.append(f"{code}?")
            return code != "A3"

        def check(_: object) -> Iterator[Problem]:
            events.append(code)
            yield Problem(code)

        return Rule(code=code, name=code.lower(), severity="error", check=check, on=on, when=when)

    rules = [
        make_rule("A1", "values"),
        make_rule("A2", "checkpoint"),
        make_rule("A3", "checkpoint"),
        make_rule("A4", "values"),
    ]
    report = run_rules(open_checkpoint(str(CHECKPOINTS / "tiny-llama"), value_reader=ValuePass()), rules)
    assert events == ["A1?", "A2?", "A3?", "A4?", "A2", "A1", "A4"]
    assert [finding.code for finding in report.findings] == ["A1", "A2", "A4"]


def test_progress_reaches_the_end(folder: Path) -> None:
    calls: list[tuple[int, int]] = []
    read_values(folder, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (8032, 8032)
    assert calls == sorted(calls)


@pytest.mark.parametrize("mapped", [False, True])
def test_a_file_that_shrinks_is_a_finding(folder: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool) -> None:
    """It shrinks after its header was read. If a worker maps it, only the worker dies."""
    if mapped:
        monkeypatch.setattr(value_pass, "MIN_BYTES_FOR_WORKERS", 0)
    ckpt = open_checkpoint(str(folder), value_reader=ValuePass())
    assert len(ckpt.shards) == 3
    with (folder / "model-00002-of-00003.safetensors").open("r+b") as file:
        file.truncate(900)
    report = run_rules(ckpt, [rule for rule in RULES if rule.code.startswith("VAL")])
    assert [(finding.code, finding.file, finding.message) for finding in report.findings] == [
        ("VAL011", "model-00002-of-00003.safetensors", "the file shrank while it was being read")
    ]


def test_a_file_that_is_written_to_makes_the_scan_incomplete(folder: Path) -> None:
    second = folder / "model-00002-of-00003.safetensors"

    def touch(done: int, total: int) -> None:
        os.utime(second, ns=(1, done))

    report = run_all_rules(folder, progress=touch)
    assert report.verdict == "incomplete"
    assert "it was replaced or written to while it was being read" in report.crashed[0][1]
    assert not report.passed


def test_a_disk_that_fails_makes_the_scan_incomplete(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ckpt = open_checkpoint(str(folder), value_reader=ValuePass())
    assert ckpt.shards
    read = ckpt.source.read

    def broken(name: str, start: int, length: int) -> bytes:
        if "00002" in name:
            raise OSError(5, "Input/output error")
        return read(name, start, length)

    monkeypatch.setattr(ckpt.source, "read", broken)
    report = run_rules(ckpt, RULES)
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
