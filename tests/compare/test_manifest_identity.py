"""Manifests that list the identity of the weights: the one of `identity`, and what verify makes of it in another layout."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptcheck
from ckptcheck import CkptcheckError, identity
from ckptcheck.compare.manifest import read_manifest, write_manifest
from ckptcheck.errors import EvidenceError
from ckptcheck.values import tensor_part
from ckptcheck.values.shard_digest import add_sums, sum_bytes, sum_shard
from ckptcheck.values.tensor_part import PartSums, TensorPart
from tests.compare.test_identity import join_experts, load_all, save_whole
from tests.factories.checkpoint_cases import CHECKPOINTS, MEGATRON
from tests.paths import FIXTURES

TARGETS = sorted((*CHECKPOINTS.iterdir(), *MEGATRON.iterdir()))


@pytest.mark.parametrize("target", TARGETS, ids=lambda path: path.name)
def test_a_manifest_has_the_identity_of_its_target(target: Path, tmp_path: Path) -> None:
    """It is computed while the bytes are read for the digests: of every layout that the fixtures have."""
    written = ckptcheck.manifest(target, tmp_path / "m.json", jobs=1)
    found = identity(target, jobs=1)
    assert (written.identity, written.names, written.weights) == (found.identity, found.names, dict(found.tensors))
    assert read_manifest(tmp_path / "m.json") == written
    report = ckptcheck.verify(target, written)
    assert report.verdict == "clean"
    assert report.identities == {"target": found.identity, "manifest": found.identity}
    assert report.to_dict()["identity"] == dict(report.identities)


@given(st.data())
def test_parts_of_a_stream_add_up_however_it_is_cut(data: st.DataObject) -> None:
    """Rectangles of any shape, transposed as well, and blocks that end within a row or an element."""
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    array = np.arange(int(np.prod(shape)), dtype=np.uint32).reshape(shape) * np.uint32(2654435761)
    slices = []
    for length in shape:
        begin = data.draw(st.integers(0, length - 1))
        slices.append(slice(begin, data.draw(st.integers(begin + 1, length)), data.draw(st.integers(1, 2))))
    box = array[tuple(slices)].transpose(data.draw(st.permutations(range(len(shape)))))
    offset = box.__array_interface__["data"][0] - array.__array_interface__["data"][0]
    part = TensorPart("t", box.shape, 4, (0,) * len(shape), box.shape, offset, box.strides)
    raw, at = array.tobytes(), 0
    sums = PartSums([part], len(raw))
    while at < len(raw):
        step = data.draw(st.integers(1, 40))
        sums.add(raw[at : at + step])
        at += step
    assert sums.sums == {"t": sum_shard(np.ascontiguousarray(box))}


def test_sums_of_two_streams_are_added() -> None:
    """A tensor whose rows two ranks hold."""
    raw = np.random.default_rng(0).bytes(4096)
    halves = [PartSums([TensorPart("t", (2, 2048), 1, (row, 0), (1, 2048), 0, (2048, 1))], 2048) for row in (0, 1)]
    for row, half in enumerate(halves):
        half.add(raw[2048 * row : 2048 * (row + 1)])
    assert add_sums(halves[0].sums["t"], halves[1].sums["t"]) == sum_bytes(raw)


def save_joined(folder: Path, **changes: Any) -> Path:
    """Save tiny-qwen3-moe with its experts joined, after some of its single tensors changed (None: left out)."""
    source = CHECKPOINTS / "tiny-qwen3-moe"
    tensors = {name: value for name, value in {**load_all(source), **changes}.items() if value is not None}
    return save_whole(join_experts(tensors), source, folder)


def list_findings(folder: Path, manifest: Any) -> list[str]:
    report = ckptcheck.verify(folder, manifest)
    assert not report.crashed
    return [f"{finding.severity} {finding.code} {finding.message}" for finding in report.findings]


def test_joined_experts_are_the_weights_of_the_manifest(tmp_path: Path) -> None:
    before = ckptcheck.manifest(CHECKPOINTS / "tiny-qwen3-moe")
    (found,) = list_findings(save_joined(tmp_path / "joined"), before)
    assert found == (
        f"info MAN005 {len(before.weights)} weights of the manifest are here in another layout, bit for bit the same: "
        f"identity {before.identity}"
    )
    # and back: the joined tensors are gone, their parts are there
    joined = ckptcheck.manifest(tmp_path / "joined")
    assert joined.identity == before.identity
    assert [text[:11] for text in list_findings(CHECKPOINTS / "tiny-qwen3-moe", joined)] == ["info MAN005"]


def test_a_weight_that_changed_in_another_layout_is_named(tmp_path: Path) -> None:
    source = CHECKPOINTS / "tiny-qwen3-moe"
    tensors = load_all(source)
    before = ckptcheck.manifest(source)
    expert = next(name for name in tensors if name.endswith("experts.1.up_proj.weight"))
    changed = tensors[expert].copy()
    changed.reshape(-1).view(np.uint32)[-1] ^= 1
    found = list_findings(save_joined(tmp_path / "bit", **{expert: changed}), before)
    assert found == [f"error MAN005 1 weight has other values, in another layout, than the manifest recorded: {expert}"]
    norm = "model.norm.weight"
    extra = {norm: None, "model.extra.weight": np.ones(3, np.float32)}
    assert list_findings(save_joined(tmp_path / "lost", **extra), before) == [
        f"error MAN005 1 weight of the manifest is missing in the other layout: {norm}",
        "error MAN005 1 weight is in the other layout and not in the manifest: model.extra.weight",
    ]
    cast = {norm: tensors[norm].astype(np.float16)}
    assert list_findings(save_joined(tmp_path / "cast", **cast), before) == [
        f"error MAN005 1 weight has another dtype or shape than the manifest recorded: {norm}"
    ]


def test_a_manifest_of_an_older_version_is_verified_as_before(tmp_path: Path) -> None:
    source = CHECKPOINTS / "tiny-qwen3-moe"
    ckptcheck.manifest(source, tmp_path / "m.json")
    form = json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))
    old = {key: form[key] for key in ("schema", "target", "tensors")}
    (tmp_path / "old.json").write_text(json.dumps(old), encoding="utf-8")
    report = ckptcheck.verify(source, tmp_path / "old.json")
    assert (report.verdict, report.identities) == ("clean", {})
    assert "MAN002" in {
        finding.code for finding in ckptcheck.verify(save_joined(tmp_path / "j"), tmp_path / "old.json").findings
    }


def test_a_manifest_whose_weights_are_not_those_of_its_identity_is_refused(tmp_path: Path) -> None:
    taken = ckptcheck.manifest(CHECKPOINTS / "tiny-llama")
    weights = dict(taken.weights)
    weights["model.norm.weight"] = msgspec.structs.replace(weights["model.norm.weight"], digest="0" * 32)
    write_manifest(msgspec.structs.replace(taken, weights=weights), tmp_path / "m.json")
    with pytest.raises(CkptcheckError, match="is damaged: its identity is not that of the weights that it lists"):
        read_manifest(tmp_path / "m.json")


def test_a_set_without_identity_gets_a_manifest_without_one(tmp_path: Path) -> None:
    """Two tensors with one plain name: each can be verified, and the set has no name."""
    source = CHECKPOINTS / "tiny-llama"
    tensors = load_all(source)
    tensors["language_model.model.norm.weight"] = tensors["model.norm.weight"] + 1
    tensors["model.language_model.norm.weight"] = tensors["model.norm.weight"] + 2
    folder = save_whole(tensors, source, tmp_path / "twice")
    with pytest.raises(EvidenceError, match="two of its tensors map to"):
        identity(folder)
    taken = ckptcheck.manifest(folder)
    assert (taken.identity, taken.weights) == (None, {})
    assert ckptcheck.verify(folder, taken).verdict == "clean"


def test_names_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    taken = ckptcheck.manifest(MEGATRON / "dense")
    with pytest.raises(EvidenceError, match=r"the manifest has Megatron's names and .* Hugging Face's, so no tensor"):
        ckptcheck.verify(CHECKPOINTS / "tiny-llama", taken)


def test_parts_of_several_machines_make_the_same_manifest(tmp_path: Path) -> None:
    source = FIXTURES / "megatron/legacy-tp2"
    for part in ("0/2", "1/2"):
        ckptcheck.write_part("manifest", source, part=part, folder=tmp_path / "parts")
    assert ckptcheck.join(tmp_path / "parts", tmp_path / "m.json") == ckptcheck.manifest(source)


def test_a_plain_tensor_is_summed_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its digest is that of the identity."""
    monkeypatch.setattr(tensor_part, "sum_part", lambda *_: pytest.fail("summed again"))
    taken = ckptcheck.manifest(CHECKPOINTS / "tiny-llama")
    assert {name: entry.digest for name, entry in taken.tensors.items()} == {
        name: weight.digest for name, weight in taken.weights.items()
    }
    old = msgspec.structs.replace(taken, identity=None, names=None, weights={})
    assert ckptcheck.verify(Path(shutil.copytree(CHECKPOINTS / "tiny-llama", tmp_path / "c")), old).verdict == "clean"
