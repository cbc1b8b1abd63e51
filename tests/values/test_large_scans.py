"""Scans that are interrupted, and scans of checkpoints larger than memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.factories.checkpoint_cases import CHECKPOINTS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("mapped", [True, False])
def test_ctrl_c_while_values_are_read_leaves_what_the_headers_show(tmp_path: Path, mapped: bool) -> None:
    """The signal comes when the first values have been looked at: by processes that map the files, or by threads."""
    driver = f"""
import os, signal, sys
from contextlib import contextmanager
import ckptcheck.cli.output as output, ckptcheck.values.value_pass as value_pass
value_pass.MIN_BYTES_FOR_WORKERS = 0 if {mapped} else 1 << 60
value_pass.MAX_BATCH_BYTES = value_pass.READ_BYTES = 512

@contextmanager
def interrupting(target, **options):
    yield lambda done, total: os.kill(os.getpid(), signal.SIGINT)

output.progress_bar = interrupting
sys.argv = ["ckptcheck", "scan", {str(CHECKPOINTS / "tiny-llama-sharded")!r}, "-o", "report.txt", "--stats", "stats.json"]
from ckptcheck.__main__ import main
main()
"""
    (tmp_path / "stats.json").write_text("old")
    result = subprocess.run(
        [sys.executable, "-c", driver],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stdout) == (130, "")
    said = r"✗ incomplete: interrupted before its values were checked · \d+ rules passed · the report is report\.txt\n"
    assert re.fullmatch(said + "ckptcheck: interrupted\n", result.stderr)
    assert sorted(os.listdir(tmp_path)) == ["report.txt", "stats.json"]
    assert (tmp_path / "stats.json").read_text() == "old"


@pytest.mark.parametrize("flags", [[], ["--set", "no-mmap=on"]])
def test_a_checkpoint_larger_than_memory(tmp_path: Path, flags: list[str]) -> None:
    """4 GiB of holes, looked at by processes that may hold 256 MiB of data each."""
    resource = pytest.importorskip("resource")
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux limits what is mapped for writing")
    folder = tmp_path / "sparse"
    folder.mkdir()
    size = 1 << 30
    entries = {
        f"w{number}.weight": {
            "dtype": "BF16",
            "shape": [1 << 14, 1 << 15],
            "data_offsets": [number * size, (number + 1) * size],
        }
        for number in range(4)
    }
    text = json.dumps(entries | {"__metadata__": {"format": "pt"}}).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + 4 * size)
    if (folder / "model.safetensors").stat().st_blocks > 1 << 20:
        pytest.skip("this file system stores holes")
    command = [sys.executable, "-m", "ckptcheck", "scan", str(folder), "--select", "VAL", "--format", "json", *flags]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # each thread would take 32 MiB for itself
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (256 << 20, 256 << 20)),
    )
    report = json.loads(result.stdout)
    assert report["crashed"] == []
    assert [finding["code"] for finding in report["findings"]] == ["VAL016"]
    assert report["findings"][0]["message"].startswith("every weight is zero (4 tensors): ")
