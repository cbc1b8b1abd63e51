"""Manifests: taken, verified, and refused where they would vouch for nothing; blobs of the cache against their names."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from safetensors.numpy import load_file

from ckptcheck.checkpoint.open import open_checkpoint
from ckptcheck.checkpoint.scan_options import ScanOptions
from ckptcheck.compare import manifest
from ckptcheck.compare.verification import verify_manifest
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.linter import rule_loader
from ckptcheck.linter.runner import run_rules
from ckptcheck.reporters.pictures.verification import draw_verification
from ckptcheck.values.shard_digest import format_sums, sum_bytes
from tests.factories.checkpoint_cases import CHECKPOINTS, edit_tensors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", tmp_path / "ckpt"))


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ckptcheck", *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_the_digests_are_those_of_the_bytes(folder: Path) -> None:
    taken = manifest.build_manifest(open_checkpoint(str(folder)), jobs=2)
    tensors = {name: value for path in folder.glob("*.safetensors") for name, value in load_file(path).items()}
    assert taken.tensors.keys() == tensors.keys()
    for name, entry in taken.tensors.items():
        assert entry.digest == format_sums(sum_bytes(tensors[name].tobytes()), tensors[name].nbytes)
        assert (entry.dtype, entry.shape) == ("F32", tensors[name].shape)


def test_a_file_that_is_cut_while_it_is_read_has_no_manifest(folder: Path) -> None:
    ckpt = open_checkpoint(str(folder))
    assert ckpt.tensors
    shard = folder / ckpt.tensor_to_file["model.norm.weight"]
    os.truncate(shard, shard.stat().st_size - 4)
    with pytest.raises(EvidenceError, match=rf"^{shard.name} ends before \S+ does$"):
        manifest.build_manifest(ckpt, jobs=1)


def test_taken_and_verified_by_command(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "manifest.json"
    taken = command("manifest", folder, "-o", file)
    assert (taken.returncode, taken.stdout, taken.stderr) == (0, "", f"30 tensors written to {file}\n")
    assert json.loads(file.read_text(encoding="utf-8"))["schema"] == manifest.SCHEMA
    same = command("verify", folder, file)
    assert same.returncode == 0
    assert "✓ clean · 30 tensors are unchanged, byte for byte · 2 rules passed" in same.stdout
    shard = folder / "model-00002-of-00003.safetensors"
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    other = command("verify", folder, file, "--format", "json")
    assert other.returncode == 1
    (finding,) = json.loads(other.stdout)["findings"]
    assert (finding["code"], finding["file"]) == ("MAN001", shard.name)


def test_a_scan_does_not_see_what_verify_sees(folder: Path) -> None:
    """A bit in the middle of a mantissa is nobody's anomaly: that is what manifests are for."""
    before = manifest.build_manifest(open_checkpoint(str(folder)))
    shard = folder / "model-00002-of-00003.safetensors"
    raw = bytearray(shard.read_bytes())
    raw[-4] ^= 1
    shard.write_bytes(raw)
    assert run_rules(open_checkpoint(str(folder)), rule_loader.load_rules()).findings == ()
    report = run_rules(verify_manifest(open_checkpoint(str(folder)), before), rule_loader.load_rules())
    assert [finding.code for finding in report.findings] == ["MAN001"]


def test_a_renamed_tensor_is_recognised_by_its_bytes(folder: Path) -> None:
    before = manifest.build_manifest(open_checkpoint(str(folder)))
    shard = folder / "model-00001-of-00003.safetensors"
    raw = shard.read_bytes()
    assert raw.count(b'"lm_head.weight"') == 1
    shard.write_bytes(raw.replace(b'"lm_head.weight"', b'"lm_head.Weight"'))
    report = run_rules(verify_manifest(open_checkpoint(str(folder)), before), rule_loader.load_rules())
    assert [(finding.code, finding.message) for finding in report.findings] == [
        ("MAN002", "1 tensor has another name now, with the same bytes: lm_head.weight is lm_head.Weight")
    ]


def _verified(folder: Path, before: dict[str, object], after: dict[str, object]) -> list[str]:
    """What is found of a file of these tensors, dtype and shape and first byte, that holds others now."""
    folder.mkdir()

    def write(tensors: dict[str, object]) -> None:
        import numpy as np
        from safetensors.numpy import save_file

        save_file({name: np.asarray(value) for name, value in tensors.items()}, folder / "model.safetensors")

    write(before)
    taken = manifest.build_manifest(open_checkpoint(str(folder)))
    write(after)
    report = run_rules(verify_manifest(open_checkpoint(str(folder)), taken), rule_loader.load_rules())
    assert not report.crashed
    return [f"{finding.code} {finding.message}" for finding in report.findings]


def test_only_the_same_tensor_under_another_name_is_renamed(tmp_path: Path) -> None:
    import numpy as np

    ones = np.ones(128, np.float32)
    lost = "MAN002 1 tensor of the manifest is missing: a"
    unknown = "MAN002 1 tensor is not in the manifest: b"
    assert _verified(tmp_path / "shape", {"a": ones}, {"b": ones.reshape(8, 16)}) == [lost, unknown]
    assert _verified(tmp_path / "dtype", {"a": ones}, {"b": ones.view(np.int32)}) == [lost, unknown]
    assert _verified(tmp_path / "zeros", {"a": 0 * ones}, {"b": 0 * ones}) == [lost, unknown]
    assert _verified(tmp_path / "renamed", {"a": ones}, {"b": ones}) == [
        "MAN002 1 tensor has another name now, with the same bytes: a is b"
    ]
    assert _verified(tmp_path / "one of two", {"a": ones, "c": ones}, {"b": ones}) == [
        "MAN002 1 tensor of the manifest is missing: c",
        "MAN002 1 tensor has another name now, with the same bytes: a is b",
    ]
    assert _verified(tmp_path / "two of one", {"a": ones}, {"b": ones, "c": ones}) == [
        "MAN002 1 tensor has another name now, with the same bytes: a is b",
        "MAN002 1 tensor is not in the manifest: c",
    ]


def test_the_tensors_of_a_truncated_shard_are_named(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "manifest.json"
    assert command("manifest", folder, "-o", file).returncode == 0
    shard = folder / "model-00002-of-00003.safetensors"
    os.truncate(shard, shard.stat().st_size - 400)
    other = command("verify", folder, file, "--format", "json")
    report = json.loads(other.stdout)
    assert other.returncode == 1, other.stderr
    (finding,) = report["findings"]
    assert finding["code"] == "MAN001"
    assert finding["message"].startswith(
        "3 tensors are no longer where they were: model.layers.1.self_attn.o_proj.weight, "
    )
    assert finding["message"].endswith("; model.layers.1.self_attn.o_proj.weight: its file ends before it")


def test_half_a_checkpoint_gets_no_manifest(folder: Path, tmp_path: Path) -> None:
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(EvidenceError, match=r"model-00002-of-00003\.safetensors cannot be read"):
        manifest.build_manifest(open_checkpoint(str(folder)))
    result = command("manifest", folder, "-o", tmp_path / "m.json")
    assert result.returncode == 2
    assert not (tmp_path / "m.json").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is not a manifest"),
        ("[]", "is not a manifest"),
        ('{"schema": "x", "target": "", "tensors": {}}', "has the schema 'x'"),
        ('{"schema": "ckptcheck-manifest/2", "target": "", "tensors": {}}', "lists no tensor"),
        ('{"schema": "ckptcheck-manifest/2", "target": "", "tensors": {"a": 1}}', "is not a manifest"),
    ],
)
def test_a_manifest_that_is_none_verifies_nothing(folder: Path, tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(CkptcheckError, match=sentence):
        manifest.read_manifest(tmp_path / "m.json")
    assert command("verify", folder, tmp_path / "m.json").returncode == 2


def test_names_of_any_kind_survive(tmp_path: Path) -> None:
    edit_tensors(tmp_path / "model.safetensors", {'a "b"\n\u2028é': {"dtype": "F32", "shape": [2]}})
    taken = manifest.build_manifest(open_checkpoint(str(tmp_path / "model.safetensors")))
    manifest.write_manifest(taken, tmp_path / "m.json")
    assert manifest.read_manifest(tmp_path / "m.json") == taken


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """The cache's layout: a snapshot of links to blobs that are named by what they hold."""
    root = tmp_path / "models--org--name"
    (root / "blobs").mkdir(parents=True)
    (root / "snapshots" / "abc").mkdir(parents=True)
    for path in (CHECKPOINTS / "tiny-llama-sharded").iterdir():
        raw = path.read_bytes()
        large = path.suffix == ".safetensors"
        name = hashlib.sha256(raw).hexdigest() if large else hashlib.sha1(raw).hexdigest()
        (root / "blobs" / name).write_bytes(raw)
        (root / "snapshots" / "abc" / path.name).symlink_to(f"../../blobs/{name}")
    return root / "snapshots" / "abc"


def test_a_corrupt_blob_is_found(snapshot: Path) -> None:
    rules = [rule for rule in rule_loader.load_rules() if rule.code == "ST024"]

    def look(verify: bool) -> tuple[list[str], list[str]]:
        ckpt = open_checkpoint(str(snapshot), options=ScanOptions(verify_blobs=verify))
        report = run_rules(ckpt, rules)
        return [f"{finding.file}: {finding.message[:14]}" for finding in report.findings], [
            why for _, why in report.skipped
        ]

    assert look(False) == ([], ["needs --set verify-blobs=on"])
    assert look(True) == ([], [])
    blob = (snapshot / "model-00002-of-00003.safetensors").resolve()
    raw = bytearray(blob.read_bytes())
    raw[-9] ^= 64
    blob.write_bytes(raw)
    assert look(True) == (["model-00002-of-00003.safetensors: its SHA-256 is"], [])
    assert command("scan", snapshot, "--set", "verify-blobs=on", "--select", "ST024").returncode == 1


def test_a_manifest_of_another_model_is_one_finding(tmp_path: Path) -> None:
    import numpy as np

    def draw(seed: int, names: str, width: int = 4, dtype: str = "float32") -> dict[str, object]:
        generator = np.random.default_rng(seed)
        drawn = {name: generator.normal(size=(width, width)).astype(dtype) for name in names}
        return {**drawn, "norm": np.ones(width, dtype)}

    letters = "abcdefghijklmnop"
    same = draw(1, letters)
    other = "MAN001 the manifest, which was written of " + str(tmp_path)
    (found,) = _verified(tmp_path / "names", same, draw(2, letters.upper()))
    assert found.startswith(f"{other}/names, is of another model: of its 17 tensors, 1 are here by name")
    (found,) = _verified(tmp_path / "shapes", same, draw(2, letters, width=8))
    assert "is of another model: of its 17 tensors, 17 are here by name, 0 of them with the same shape" in found
    (found,) = _verified(tmp_path / "step", same, draw(2, letters))
    assert "is of another step or another training of this architecture" in found
    assert found.endswith("names and shapes agree, and 1 of 17 tensors has the same values")
    (found,) = _verified(tmp_path / "cast", same, draw(1, letters, dtype="float16"))
    assert found == "MAN001 17 tensors were F32 and are F16: a, b, c and 14 more"
    # a LoRA merged into half of the tensors, a shard that is gone, a few tensors of a small checkpoint
    half = {**same, **{name: value for name, value in draw(2, letters).items() if name in letters[:8]}}
    assert len(_verified(tmp_path / "half", same, half)) == 1
    assert _verified(tmp_path / "lost", same, {"a": same["a"], "b": same["b"]}) == [
        "MAN002 15 tensors of the manifest are missing: c, d, e and 12 more"
    ]
    small = _verified(tmp_path / "small", draw(1, "abc"), draw(2, "xyz"))
    assert [line.partition(" ")[0] for line in small] == ["MAN002", "MAN002"]


def test_the_picture_says_what_became_of_each_tensor(folder: Path) -> None:
    ckpt = open_checkpoint(str(folder))
    listed = manifest.build_manifest(ckpt).tensors
    gone, renamed, changed, moved = sorted(listed)[:4]
    old = dict(listed)
    old["was"] = old.pop(renamed)
    old["vanished"] = msgspec.structs.replace(old.pop(gone), shape=(3,))
    old[changed] = msgspec.structs.replace(old[changed], digest="0" * 32)
    old[moved] = msgspec.structs.replace(old[moved], file="elsewhere")
    evidence = verify_manifest(ckpt, manifest.Manifest(manifest.SCHEMA, "old", old))
    picture = draw_verification(evidence, "Tensors by layer")
    assert picture is not None
    states = {cell.name: cell.state for cell in picture.cells.values()}
    odd = {gone: "new", "was": "renamed", "vanished": "vanished", changed: "changed", moved: "moved"}
    assert states == dict.fromkeys(sorted(listed)[4:], "unchanged") | odd
    assert evidence.headline == ""
