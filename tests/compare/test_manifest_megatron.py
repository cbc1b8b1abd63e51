"""Manifests of Megatron runs: what no checksum and no tiling tells is told, and each tensor by its name."""

from __future__ import annotations

import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.tensor import Item
from ckptcheck.checkpoint.open import open_target
from ckptcheck.compare import manifest, run_streams
from ckptcheck.compare.run_streams import iter_boxes
from ckptcheck.compare.verification import verify_manifest
from ckptcheck.errors import EvidenceError
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.values.shard_digest import format_sums, sum_bytes
from tests.compare.test_manifest import command
from tests.factories.checkpoint_cases import MEGATRON

IT = "iter_0000100"
RULES = rule_loader.load_rules()


def opened(path: Path) -> Megatron:
    found = open_target(str(path))
    assert isinstance(found, Megatron)
    return found


@pytest.fixture
def copied(tmp_path: Path) -> Any:
    return lambda name: Path(shutil.copytree(MEGATRON / name, tmp_path / name))


def findings(path: Path, before: manifest.Manifest) -> list[str]:
    report = run_rules(verify_manifest(opened(path), before), RULES)
    assert not report.crashed
    return [f"{finding.code} {finding.file} {finding.key}: {finding.message}" for finding in report.findings]


@given(st.lists(st.integers(0, 5), max_size=4), st.integers(1, 40))
@settings(deadline=None)
def test_boxes_follow_each_other_in_row_major_order(shape: list[int], most: int) -> None:
    whole = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    parts = [whole[tuple(box)] for box in iter_boxes(tuple(shape), most)]
    assert b"".join(part.tobytes() for part in parts) == whole.tobytes()
    assert all(part.size <= max(most, 1) for part in parts)


@pytest.mark.parametrize("name", ["dense", "tp2-pp2", "moe-ep2", "per-layer"])
@pytest.mark.parametrize("block", [1 << 23, 100])
def test_the_digests_are_those_of_the_assembled_tensors(name: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 bytes at a time: less than a row of most."""
    monkeypatch.setattr(run_streams, "BLOCK", block)
    found = opened(MEGATRON / name)
    taken = manifest.build_manifest(found, jobs=2)
    assert taken.tensors.keys() >= found.weights.keys()
    for key, entry in taken.tensors.items():
        values = found.read(key)
        assert entry.digest == format_sums(sum_bytes(values.tobytes()), values.nbytes), key
        assert entry.shape == values.shape


def test_the_same_model_cut_in_another_way_is_the_same() -> None:
    """Stacked layers, four ranks: other files, the same bytes, so nothing has changed but where they lie."""
    plain = manifest.build_manifest(opened(MEGATRON / "dense"))
    other = manifest.build_manifest(opened(MEGATRON / "tp2-pp2"))
    assert {key: entry.digest for key, entry in plain.tensors.items()} == {
        key: entry.digest for key, entry in other.tensors.items()
    }


def test_taken_and_verified_by_command(copied: Any, tmp_path: Path) -> None:
    folder, file = copied("tp2-pp2"), tmp_path / "manifest.json"
    taken = command("manifest", folder, "-o", file)
    assert (taken.returncode, taken.stdout) == (0, "")
    same = command("verify", folder, file)
    assert (same.returncode, "· 2 rules passed" in same.stdout) == (0, True), same
    rot(folder / IT / "__0_0.distcp", opened(folder), "decoder.layers.0.mlp.linear_fc2.weight")
    assert command("verify", folder, file).returncode == 1


def rot(path: Path, found: Megatron, key: str) -> None:
    """Flip the lowest bit of a weight's first element in one of its files."""
    from ckptcheck.checkpoint.megatron.tensor_reader import locate_chunk

    for chunk in found.weights[key].chunks:
        place = locate_chunk(found.source, chunk, found.weights[key].dtype, found.item_folder)
        if place.name == f"{found.iteration}/{path.name}":
            raw = bytearray(path.read_bytes())
            raw[place.begin] ^= 1
            path.write_bytes(raw)
            return
    raise AssertionError(f"{key} is not in {path}")


def test_bit_rot_is_named(copied: Any) -> None:
    folder = copied("tp2-pp2")
    before = manifest.build_manifest(opened(folder))
    rot(folder / IT / "__0_0.distcp", opened(folder), "decoder.layers.0.mlp.linear_fc2.weight")
    assert findings(folder, before) == [
        f"MAN001 {IT} decoder.layers.0.mlp.linear_fc2.weight: 1 tensor has other values than the manifest recorded: "
        "decoder.layers.0.mlp.linear_fc2.weight"
    ]


def test_archives_of_equal_size_that_are_swapped_are_named(copied: Any) -> None:
    """Each is sound, its checksum too, and lies at an offset that `.metadata` gives: a scan has nothing to say."""
    folder = copied("tp2-pp2")
    before = manifest.build_manifest(opened(folder))
    found = opened(folder)
    places: dict[tuple[str, tuple[int, ...], int], list[tuple[str, Item]]] = {}
    for key, tensor in found.weights.items():
        for chunk in tensor.chunks:
            assert chunk.item is not None
            alike = places.setdefault((tensor.dtype, chunk.sizes, chunk.item.length), [])
            if chunk.item not in [item for _, item in alike]:
                alike.append((key, chunk.item))
    (one, first), (other, second) = next(
        (a, b)
        for alike in places.values()
        for a, b in combinations(alike, 2)
        if raw_of(folder, a[1]) != raw_of(folder, b[1])
    )
    swapped = raw_of(folder, second), raw_of(folder, first)
    for item, raw in zip((first, second), swapped, strict=True):
        with (folder / IT / item.file).open("r+b") as file:
            file.seek(item.begin)
            file.write(raw)
    assert run_rules(opened(folder), [rule for rule in RULES if rule.on == "megatron"]).findings == ()
    assert {part for text in findings(folder, before) for part in (one, other) if part in text} == {one, other}


def raw_of(folder: Path, item: Item) -> bytes:
    return (folder / IT / item.file).read_bytes()[item.begin : item.begin + item.length]


def test_files_of_equal_size_that_are_swapped_are_named(copied: Any) -> None:
    """Their archives lie elsewhere: what is read at the old places is none, or another's."""
    folder = copied("tp2-pp2")
    before = manifest.build_manifest(opened(folder))
    first, second = (folder / IT / f"__{number}_0.distcp" for number in (1, 3))
    assert first.stat().st_size == second.stat().st_size
    raw = first.read_bytes()
    shutil.copyfile(second, first)
    second.write_bytes(raw)
    (found,) = findings(folder, before)
    assert found.startswith(
        "MAN001 None decoder.layers.0.mlp.linear_fc1.weight: 10 tensors are no longer where they were"
    )


def test_a_file_of_another_save_is_named(copied: Any) -> None:
    """Where its archives lie elsewhere, its tensors are not where they were."""
    folder = copied("dense")
    before = manifest.build_manifest(opened(folder))
    (target,) = (folder / IT).glob("*_0.distcp")
    size = target.stat().st_size
    raw = target.read_bytes()
    target.write_bytes((raw[64:] + raw)[:size])
    (found,) = findings(folder, before)
    assert found.startswith("MAN001 None ")
    assert "are no longer where they were" in found
    assert "MAN002" not in found


def test_ranks_of_a_legacy_checkpoint_are_listed_one_by_one(copied: Any) -> None:
    """A norm that every rank holds: only one rank's copy has changed."""
    folder = copied("legacy-tp2")
    before = manifest.build_manifest(opened(folder))
    ranks = {name.partition("/")[0] for name in before.tensors}
    assert ranks == {"mp_rank_00", "mp_rank_01"}
    key = "mp_rank_01/model/decoder.final_layernorm.weight"
    assert key in before.tensors
    path = folder / IT / "mp_rank_01" / "model_optim_rng.pt"
    found = opened(folder)
    record = found.ranks[1].chunks[0]["decoder.final_layernorm.weight"].record
    from ckptcheck.checkpoint.torch_archive import open_archive

    raw = bytearray(path.read_bytes())
    archive = open_archive(lambda start, length: bytes(raw[start : start + length]), len(raw))
    raw[archive.records[record].begin] ^= 1
    path.write_bytes(raw)
    assert [text.partition(": ")[0] for text in findings(folder, before)] == [
        f"MAN001 {IT}/mp_rank_01/model_optim_rng.pt {key}"
    ]


def test_half_a_run_gets_no_manifest(copied: Any) -> None:
    folder = copied("tp2-pp2")
    (folder / IT / "__0_0.distcp").unlink()
    with pytest.raises(EvidenceError, match=r"__0_0\.distcp"):
        manifest.build_manifest(opened(folder))
    folder = copied("legacy-tp2")
    (folder / IT / "mp_rank_01" / "model_optim_rng.pt").write_bytes(b"no archive")
    with pytest.raises(EvidenceError, match=r"mp_rank_01 cannot be read"):
        manifest.build_manifest(opened(folder))
