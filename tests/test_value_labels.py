"""Labels of dtypes, copies and scales on a real model: what is wrong is named, and what merely looks odd is left alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_value_damage import findings, raw_values, rewritten

from ckptcheck import pack
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.run import run


def as_numbers(raw: bytes) -> np.ndarray:
    return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("levels", ["one a row and column", "two", "three in groups of 16"])
def test_rounded_weights_in_f16_are_sound(smollm2: Path, tmp_path: Path, levels: str) -> None:
    """Weights that a method rounded to one, two or three bits and stored in F16 are as narrow as BF16 called F16."""
    ckpt = open_checkpoint(str(smollm2))
    values = {}
    for name, tensor in ckpt.tensors.items():
        value = as_numbers(raw_values(ckpt, name))
        if ".layers." in name and len(tensor.shape) == 2:
            rows = value.reshape(tensor.shape)
            groups = rows.reshape(-1, 16)
            size, mean = np.abs(groups).max(1, keepdims=True), np.abs(groups).mean(1, keepdims=True)
            match levels:
                case "one a row and column":  # as OneBit factors a matrix
                    spread = np.abs(rows).mean(0, keepdims=True) * np.abs(rows).mean(1, keepdims=True)
                    rows = np.where(rows < 0, -1, 1) * spread / np.abs(rows).mean()
                case "two":
                    rows = np.sign(groups) * np.where(np.abs(groups) > mean, 1.5, 0.5) * mean
                case _:
                    rows = np.round(groups / size * 3) * size / 3
            value = rows.reshape(-1)
        values[name] = value.astype(np.float16).tobytes()
    folder = rewritten(smollm2, tmp_path / "rounded", values, relabel=("BF16", "F16"))
    assert [finding for finding in findings(folder) if finding.code == "VAL006"] == []


def test_a_shard_of_swapped_bytes_is_one_finding(smollm2: Path, tmp_path: Path) -> None:
    ckpt = open_checkpoint(str(smollm2))
    (shard, *_) = sorted(ckpt.shards)[1:]
    swapped = {
        name: np.frombuffer(raw_values(ckpt, name), "<u2").byteswap().tobytes() for name in ckpt.shards[shard].tensors
    }
    found = [
        finding for finding in findings(rewritten(smollm2, tmp_path / "swapped", swapped)) if finding.code == "VAL006"
    ]
    assert [finding.file for finding in found] == [shard]
    assert " tensors hold an absurdly large value: " in found[0].message
    assert found[0].message.endswith("flipped bits or a wrong dtype")


def test_integers_for_numbers_in_a_real_model(smollm2: Path, tmp_path: Path) -> None:
    (rule,) = (rule for rule in pack.load() if rule.code == "CFG021")
    assert run(open_checkpoint(str(smollm2)), [rule]).findings == ()
    folder = rewritten(smollm2, tmp_path / "integers", {}, relabel=("BF16", "I16"))
    found = run(open_checkpoint(str(folder)), [rule]).findings
    assert {finding.file for finding in found} == set(open_checkpoint(str(smollm2)).shards)
    assert all(" weights are labelled I16, and nothing is quantized here: " in finding.message for finding in found)
