"""One name for a set of weights: equal for every layout of the same weights, and for no others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ckptcheck import CkptcheckError, identity, series
from ckptcheck.checkpoint.open import open_target
from ckptcheck.compare import layout_sums
from ckptcheck.compare.identity import Identity, TensorIdentity, compute_root, identify_checkpoint
from ckptcheck.errors import EvidenceError
from ckptcheck.live.runtime.worker.ckptcheck_worker.shard_digest import format_sums
from ckptcheck.values.shard_digest import sum_bytes
from tests.factories.checkpoint_cases import CHECKPOINTS
from tests.factories.identities import list_differences
from tests.paths import ROOT


def load_all(folder: Path) -> dict[str, np.ndarray]:
    return {name: value for path in sorted(folder.glob("*.safetensors")) for name, value in load_file(path).items()}


def save_whole(tensors: dict[str, np.ndarray], source: Path, folder: Path) -> Path:
    folder.mkdir()
    shutil.copy(source / "config.json", folder)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("slab", [1 << 8, layout_sums.SLAB])
def test_the_name_does_not_depend_on_shards(slab: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_sums, "SLAB", slab)
    source = CHECKPOINTS / "tiny-llama-sharded"
    whole = save_whole(load_all(source), source, tmp_path / "whole")
    first, second = identity(source), identity(whole, jobs=1)
    assert first.identity == second.identity
    assert first.tensors == second.tensors
    for name, value in load_all(source).items():
        assert first.tensors[name] == TensorIdentity(
            "F32", value.shape, format_sums(sum_bytes(value.tobytes()), value.nbytes)
        )


@pytest.mark.parametrize(
    ("change", "is_early", "reason"),
    [
        (lambda file: os.truncate(file, 1 << 12), True, "it ends earlier than its header says"),
        (
            lambda file: os.truncate(file, 1 << 12),
            False,
            "it (ends earlier than its header says|changed while it was read)",
        ),
        (lambda file: os.utime(file, (0, 0)), False, "it changed while it was read"),
    ],
)
def test_a_file_that_changes_has_no_name(
    change: Callable[[Path], None], is_early: bool, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = CHECKPOINTS / "tiny-llama-sharded"
    big = {**load_all(source), "model.norm.weight": np.ones(1 << 20, np.float32)}
    folder = save_whole(big, source, tmp_path / "big")
    monkeypatch.setattr(layout_sums, "SLAB", 1 << 12)
    ckpt, changed = open_target(str(folder)), []

    def change_once(*_: int) -> None:
        if not changed:
            changed.append(True)
            change(folder / "model.safetensors")

    if is_early and ckpt.tensors:  # the headers are read
        change_once()
    with pytest.raises(EvidenceError, match=rf"has no identity: model\.safetensors cannot be read: {reason}"):
        identify_checkpoint(ckpt, jobs=1, progress=change_once)


def test_every_bit_counts(tmp_path: Path) -> None:
    source = CHECKPOINTS / "tiny-llama-sharded"
    usual = identity(source)
    tensors = load_all(source)
    for number, name in enumerate(list(tensors)[::7]):
        changed = {other: value.copy() for other, value in tensors.items()}
        changed[name].reshape(-1).view(np.uint32)[-1] ^= 1 << number
        other = identity(save_whole(changed, source, tmp_path / str(number)))
        assert other.identity != usual.identity
        assert list_differences(usual, other) == [name]


def test_names_dtypes_and_shapes_count() -> None:
    tensor = TensorIdentity("BF16", (4, 8), "0" * 32)
    roots = {
        compute_root({"a": tensor}),
        compute_root({"b": tensor}),
        compute_root({"a": TensorIdentity("F16", (4, 8), "0" * 32)}),
        compute_root({"a": TensorIdentity("BF16", (8, 4), "0" * 32)}),
        compute_root({"a": tensor, "b": tensor}),
        compute_root({"a": tensor, "b": tensor, "c": tensor}),
        compute_root({}),
    }
    assert len(roots) == 7
    assert compute_root({"b": tensor, "a": tensor}) == compute_root({"a": tensor, "b": tensor})


def test_a_tied_head_that_is_stored_again_is_no_second_tensor(tmp_path: Path) -> None:
    source = CHECKPOINTS / "tiny-qwen2-tied"
    tensors = load_all(source)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    twice = identity(save_whole(tensors, source, tmp_path / "twice"))
    assert twice.identity == identity(source).identity
    assert twice.left_out["lm_head.weight"] == "it is model.embed_tokens.weight, stored a second time"
    tensors["lm_head.weight"] = tensors["lm_head.weight"] + 1
    assert identity(save_whole(tensors, source, tmp_path / "other")).identity != twice.identity


def join_experts(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Stack the experts of each layer, their gates above their up projections, as transformers 5 stores them."""
    experts = [name for name in tensors if ".experts." in name]
    joined = {name: value for name, value in tensors.items() if name not in experts}
    for at in sorted({name.partition(".experts.")[0] + ".experts" for name in experts}):
        number = 1 + max(int(name.split(".experts.")[1].split(".")[0]) for name in experts if name.startswith(at))
        gates, ups, downs = (
            np.stack([tensors[f"{at}.{index}.{part}_proj.weight"] for index in range(number)])
            for part in ("gate", "up", "down")
        )
        joined[f"{at}.gate_up_proj"] = np.concatenate([gates, ups], 1)
        joined[f"{at}.down_proj"] = downs
    return joined


def test_joined_experts_and_single_ones_have_one_name(tmp_path: Path) -> None:
    source = CHECKPOINTS / "tiny-qwen3-moe"
    tensors = load_all(source)
    joined = join_experts(tensors)
    assert len(joined) < len(tensors)
    other = identity(save_whole(joined, source, tmp_path / "joined"))
    assert list_differences(identity(source), other) == []


def test_a_set_with_a_part_missing_has_no_name(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(CHECKPOINTS / "tiny-llama-sharded", tmp_path / "ckpt"))
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(EvidenceError, match=r"has no identity: model-00002-of-00003\.safetensors cannot be read"):
        identity(folder)
    shard = folder / "model-00001-of-00003.safetensors"
    shutil.copy(CHECKPOINTS / "tiny-llama-sharded/model-00002-of-00003.safetensors", folder)
    shard.write_bytes(shard.read_bytes()[:-64])
    with pytest.raises(EvidenceError, match="has no identity"):
        identity(folder)


def test_a_reference_that_names_nothing_is_refused() -> None:
    with pytest.raises(CkptcheckError, match="does not say what Megatron's tensors are called"):
        identity(ROOT / "fixtures/megatron/dense", like=ROOT / "fixtures/megatron/dense")


def test_a_reference_of_another_model_is_refused(tmp_path: Path) -> None:
    source = CHECKPOINTS / "tiny-llama-sharded"
    tensors = load_all(source)
    norm = tensors["model.norm.weight"]
    normed = save_whole({**tensors, "model.layers.1.self_attn.q_norm.weight": norm}, source, tmp_path / "normed")
    taller = save_whole({**tensors, "model.layers.7.enorm.weight": norm}, source, tmp_path / "taller")
    for target, like, said in (
        (
            ROOT / "fixtures/megatron/dense",
            CHECKPOINTS / "tiny-qwen3-moe",
            r"its model\.layers\.0\.input_layernorm\.weight is \[8\]",
        ),
        (CHECKPOINTS / "tiny-llama", CHECKPOINTS / "tiny-qwen3-moe", r"it has no model\.layers\.\d\.mlp"),
        (
            source,
            normed,
            r"it has model\.layers\.1\.self_attn\.q_norm\.weight, and no layer of the other has self_attn\.q_norm",
        ),
        (normed, source, r"it has no model\.layers\.1\.self_attn\.q_norm\.weight"),
    ):
        with pytest.raises(EvidenceError, match=f"is of another model than .*: {said}"):
            identity(target, like=like)
    with pytest.raises(EvidenceError, match="is of another model than"):  # what was named wrongly is no fault of a save
        series(ROOT / "fixtures/megatron/dense", like=CHECKPOINTS / "tiny-qwen3-moe")
    assert identity(source, like=taller).identity == identity(source, like=source).identity == identity(source).identity


def test_a_run_without_a_reference_keeps_its_own_names() -> None:
    found = identity(ROOT / "fixtures/megatron/tp2-pp2")
    assert found.names == "Megatron"
    assert "decoder.layers.0.self_attention.linear_qkv.weight" in found.tensors


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ckptcheck", *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_the_command_prints_one_line_or_all_tensors(tmp_path: Path) -> None:
    source = CHECKPOINTS / "tiny-llama-sharded"
    found: Identity = identity(source)
    text = run("identity", source)
    assert (text.returncode, text.stderr) == (0, "")
    assert text.stdout == f"{found.identity}  {source}  (30 tensors, 8.03 kB, Hugging Face names)\n"
    written = json.loads(run("identity", source, "--format", "json").stdout)
    assert written == json.loads(json.dumps(found.to_dict()))
    assert (written["schema"], written["identity"]) == ("ckptcheck-identity/1", found.identity)
    both = run("identity", source, CHECKPOINTS / "tiny-llama")
    assert (both.returncode, len(both.stdout.splitlines())) == (0, 2)
    assert both.stdout.startswith(text.stdout)
    forms = json.loads(run("identity", source, source, "--format", "json").stdout)
    assert forms == [written, written]
    missing = run("identity", tmp_path / "nowhere")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr.startswith("ckptcheck: ")
