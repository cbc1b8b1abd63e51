"""A tensor whose bytes are not those of its dtype and shape is left out of whatever reads values, and ST001 reports its file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import ckptcheck
from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.compare.diagnosis.inputs import TensorBits
from ckptcheck.errors import EvidenceError
from ckptcheck.linter.rule import Skip
from ckptcheck.live.runtime.trainers.spawn import tensor_files
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.factories.comparison_cases import write_bytes
from tests.factories.deltas import take_step, write_disk_delta
from tests.factories.value_cases import read_values, run_all_rules

Header = dict[str, dict[str, Any]]
EMBEDDING, NORM, OTHER = "model.embed_tokens.weight", "model.norm.weight", "model.layers.1.self_attn.q_proj.weight"
MATRIX = "model.layers.0.mlp.down_proj.weight"


def change_header(path: Path, change: Callable[[Header], object], data: Callable[[bytes], bytes] = bytes) -> None:
    """Change the entries of a file and its data."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data(raw[start:]))


def shorten(header: Header) -> None:
    """Take one element from the embedding and move what follows: the file has no hole."""
    end = header[EMBEDDING]["data_offsets"][1]
    header[EMBEDDING]["data_offsets"][1] -= 4
    for name, entry in header.items():
        if name != "__metadata__" and entry["data_offsets"][0] >= end:
            entry["data_offsets"] = [offset - 4 for offset in entry["data_offsets"]]


CHANGES: dict[str, tuple[str, Callable[[Header], object]]] = {
    "two sides of 2^33": (EMBEDDING, lambda header: header[EMBEDDING].update(shape=[2**33, 2**33])),
    "a million rows over 384 bytes": (MATRIX, lambda header: header[MATRIX].update(shape=[1_000_000, 8])),
    "no bytes": (NORM, lambda header: header[NORM].update(data_offsets=[0, 0])),
    "an embedding without its last element": (EMBEDDING, shorten),
    "no element over bytes": (OTHER, lambda header: header[OTHER].update(shape=[0])),
    "half a byte over": (MATRIX, lambda header: header[MATRIX].update(dtype="F4", shape=[3, 7])),
    "another width": (EMBEDDING, lambda header: header[EMBEDDING].update(dtype="F16")),
    "an unknown dtype": (MATRIX, lambda header: header[MATRIX].update(dtype="F128")),
    "the end before the beginning": (MATRIX, lambda header: header[MATRIX]["data_offsets"].reverse()),
    "behind the end of the file": (MATRIX, lambda header: header[MATRIX].update(data_offsets=[2**40, 2**40 + 384])),
}
"""What is wrong → the tensor, and how its header comes to be so."""


@pytest.mark.parametrize("what", CHANGES)
def test_what_does_not_fit_its_shape_is_left_out(what: str, tmp_path: Path) -> None:
    name, change = CHANGES[what]
    folder = Path(shutil.copytree(CHECKPOINTS / "tiny-llama", tmp_path / "model"))
    cut = slice(0, -4) if what == "an embedding without its last element" else slice(None)
    change_header(folder / "model.safetensors", change, lambda data: data[cut])
    report = run_all_rules(folder)
    assert (report.crashed, report.error, report.exit_code()) == ((), None, 1)
    assert "ST001" in {finding.code for finding in report.findings}
    reasons = dict(report.skipped)
    assert reasons["VAL001"].startswith(f"could not look at the values of {name}: ")
    assert not {"VAL001", "VAL005", "VAL012", "VAL024", "VAL025"} & {*report.passed}
    values = read_values(folder)
    assert name not in values.tensors
    assert values.tensors.keys() == read_values(CHECKPOINTS / "tiny-llama").tensors.keys() - {name}


def test_a_byte_is_read_once_however_many_tensors_claim_it(tmp_path: Path) -> None:
    """A header of a megabyte could otherwise have a large file read a million times."""
    folder = Path(shutil.copytree(CHECKPOINTS / "tiny-llama", tmp_path / "model"))
    begin, end = open_checkpoint(str(folder)).tensors[EMBEDDING].data_offsets
    change_header(
        folder / "model.safetensors",
        lambda header: header.update(
            {f"copy.{number}": {**header[EMBEDDING], "data_offsets": [begin, end]} for number in range(50)}
        ),
    )
    values = read_values(folder)
    assert len(values.tensors) == len(read_values(CHECKPOINTS / "tiny-llama").tensors)
    assert run_all_rules(folder).exit_code() == 1


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3"])
def test_packed_numbers_below_a_byte_fit(dtype: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(CHECKPOINTS / "tiny-llama", tmp_path / "model"))
    nbytes = open_checkpoint(str(folder)).tensors[MATRIX].nbytes
    elements = nbytes * 8 // (4 if dtype == "F4" else 6)
    change_header(
        folder / "model.safetensors", lambda header: header[MATRIX].update(dtype=dtype, shape=[8, elements // 8])
    )
    assert MATRIX in read_values(folder).tensors


@pytest.mark.parametrize("name", ["a.safetensors", "model.fp16.safetensors", "z.safetensors"])
def test_the_values_of_a_tensor_are_those_that_are_loaded(name: str, tmp_path: Path) -> None:
    """Another file may hold a tensor of the same name: with another shape it once crashed every rule on values."""
    folder = Path(shutil.copytree(CHECKPOINTS / "tiny-llama", tmp_path / "model"))
    save_file(
        {EMBEDDING: np.full((31, 8), np.nan, np.float16), NORM: np.zeros((), np.int8)},
        folder / name,
        {"format": "pt"},
    )
    report = run_all_rules(folder)
    assert (report.crashed, report.error) == ((), None)
    assert read_values(folder).tensors == read_values(CHECKPOINTS / "tiny-llama").tensors


def test_a_delta_of_a_tensor_that_the_base_lost_is_not_applied(tmp_path: Path) -> None:
    """The base has the tensor, in bytes that are none of its shape: DEL007 once said what followed from that, or crashed."""
    before = {"a.weight": np.arange(256, dtype=np.uint8), "b.weight": np.arange(48, dtype=np.uint8)}
    shapes = {"a.weight": (8, 16), "b.weight": (24,)}
    (tmp_path / "base").mkdir()
    write_bytes(
        tmp_path / "base/model.safetensors", {name: ("BF16", raw.tobytes()) for name, raw in before.items()}, shapes
    )
    write_disk_delta(tmp_path / "delta", before, take_step(before, 1, 0.3), version=1, base=0, encoding="overwrite")
    change_header(tmp_path / "base/model.safetensors", lambda header: header["a.weight"].update(shape=[8, 17]))
    (report,) = ckptcheck.scan(f"{tmp_path}/base+{tmp_path}/delta", select=["DEL", "ST", "VAL001"]).reports
    assert {finding.code for finding in report.findings} <= {"ST001"}
    reason = "could not apply the deltas to a.weight: its bytes are not those of its dtype and shape"
    assert {code for code, why in report.skipped if why == reason} == {"DEL007", "DEL010", "DEL012", "DEL015"}


def test_an_adapter_of_such_tensors_is_not_compared(tmp_path: Path) -> None:
    adapter, base = Path(shutil.copytree(CHECKPOINTS / "tiny-lora", tmp_path / "adapter")), CHECKPOINTS / "tiny-llama"
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"
    change_header(adapter / "adapter_model.safetensors", lambda header: header[name].update(data_offsets=[0, 0]))
    report = ckptcheck.diff(adapter, base, base=base)
    assert report.exit_code() == 2
    assert f"{name} cannot be read: its bytes are not those of its dtype and shape" in (report.error or "")


def test_other_readers_refuse_it_in_a_sentence(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(CHECKPOINTS / "tiny-llama", tmp_path / "model"))
    change_header(folder / "model.safetensors", CHANGES["a million rows over 384 bytes"][1])
    for call in (
        lambda: ckptcheck.manifest(folder, tmp_path / "m.json"),
        lambda: ckptcheck.identity(folder),
        lambda: tensor_files(open_checkpoint(str(folder))),
    ):
        with pytest.raises(ckptcheck.CkptcheckError, match=r"model\.safetensors cannot be read"):
            call()
    with pytest.raises(EvidenceError, match="its bytes are not those of its dtype and shape") as raised:
        TensorBits.read(open_checkpoint(str(folder)), MATRIX)
    assert isinstance(raised.value, Skip)
    report = ckptcheck.diff(CHECKPOINTS / "tiny-llama", folder)
    assert report.exit_code() == 2
    assert f"{MATRIX}: its bytes are not those of its dtype and shape" in (report.error or "")
