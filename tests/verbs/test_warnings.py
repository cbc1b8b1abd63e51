"""Numbers that overflow are what rules judge: numpy's warnings about them reach no user, and end no verb that makes them errors."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

import ckptcheck
from tests.factories.checkpoint_cases import CHECKPOINTS, read_tensors
from tests.factories.saved_runs import write_trainer_save
from tests.paths import DATA

FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "C64": 8}
RECORDED = DATA / "rollouts" / "answers" / "sglang-recorded.jsonl"


def draw_bits(path: Path, dtype: str, dice: np.random.Generator) -> None:
    """Give each tensor of a file this dtype, and random bits for values."""
    entries, data = {}, b""
    for name, (_, values) in read_tensors(path).items():
        raw = dice.bytes(values.size * FLOATS[dtype])
        entries[name] = {"dtype": dtype, "shape": values.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)


def count_crashes(*reports: ckptcheck.Report | ckptcheck.Reports) -> int:
    return sum(len(report.crashed) for report in reports)


@pytest.mark.parametrize("dtype", FLOATS)
def test_random_bits_of_a_float_dtype_raise_no_warning(dtype: str, tmp_path: Path) -> None:
    dice = np.random.default_rng(0)
    folders = [Path(shutil.copytree(CHECKPOINTS / "tiny-llama", tmp_path / name)) for name in ("a", "b")]
    for folder in folders:
        draw_bits(folder / "model.safetensors", dtype, dice)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scanned, compared = ckptcheck.scan(folders[0]), ckptcheck.diff(*folders)
        converted = ckptcheck.diff(CHECKPOINTS / "tiny-llama", folders[0])
    assert count_crashes(scanned, compared, converted) == 0


def test_absurd_logprobs_and_saves_raise_no_warning(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()[:4]]
    text = "\n".join(json.dumps(row) for row in rows)
    number = next(part for part in text.replace("]", ",").split(",") if part.strip().startswith("-0."))
    (tmp_path / "rollouts.jsonl").write_text(text.replace(number, " -1e308"), encoding="utf-8")
    dice = np.random.default_rng(0)
    for step in (100, 200, 300):
        for file in write_trainer_save(tmp_path / "run", step).glob("*.safetensors"):
            draw_bits(file, "F32", dice)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        judged, series = ckptcheck.judge(tmp_path / "rollouts.jsonl"), ckptcheck.series(tmp_path / "run")
    assert count_crashes(judged, series) == 0
