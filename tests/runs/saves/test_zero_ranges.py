"""What DeepSpeed's ranks keep of the weights, joined, is what its own zero_to_fp32 makes of it: files of DeepSpeed 0.19.8."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import ckptcheck
from ckptcheck.compare.bridge.hf_names import normalize_hf_name
from ckptcheck.compare.bridge.tensor_layout import cut_flat_range
from ckptcheck.compare.identity import TensorIdentity
from ckptcheck.errors import EvidenceError
from ckptcheck.runs.saves.find_saves import FoundSave, open_tree
from ckptcheck.runs.saves.read_save import read_save
from ckptcheck.runs.saves.save import Save
from ckptcheck.runs.saves.zero_ranges import _locate, _open
from ckptcheck.values.shard_digest import format_sums, sum_bytes
from tests.factories.saved_runs import write_torch_file
from tests.paths import ROOT

DEEPSPEED = ROOT / "fixtures/zero"
RANK = "bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt"


@pytest.fixture(params=[1, 2, 3], ids="stage {}".format)
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    target = tmp_path / "checkpoint-2/global_step2"
    return Path(shutil.copytree(DEEPSPEED / f"stage{request.param}/global_step2", target))


def read(folder: Path) -> Save:
    return read_save(FoundSave(str(folder), folder.name, "*", 2, "global_step"))


def take_expected(saved: Path) -> dict[str, TensorIdentity]:
    """Return what zero_to_fp32 wrote; beside it the folder would look like one of Hugging Face."""
    path = saved / "expected.safetensors"
    tensors = load_file(path)
    path.unlink()
    # It stores the shared head again, and widens the buffer, which DeepSpeed saves in 16 bits.
    return {
        normalize_hf_name(name): TensorIdentity("F32", each.shape, format_sums(sum_bytes(each.tobytes()), each.nbytes))
        for name, each in tensors.items()
        if name not in ("scale", "head.weight")
    }


def test_the_joined_ranges_are_what_deepspeed_makes_of_them(saved: Path) -> None:
    expected, found = take_expected(saved), ckptcheck.identity(saved)
    trained = {name: each for name, each in found.tensors.items() if name not in ("scale", "frozen.weight")}
    assert trained == expected
    assert {"embed.weight", "up.bias", "down.weight", "model.norm.weight"} <= trained.keys()
    # what is not trained is there in 16 bits
    assert (found.tensors["frozen.weight"].dtype, found.tensors["frozen.weight"].shape) == ("BF16", (11, 11))
    assert found.left_out == {"head.weight": "it is embed.weight, stored a second time"}


def test_frozen_weights_are_the_same_shared_or_not(tmp_path: Path) -> None:
    """ZeRO 1 keeps them in the file of the model only, 2 beside the shapes of the others, 3 a share on each rank."""
    found = set()
    for stage in (1, 2, 3):
        folder = Path(shutil.copytree(DEEPSPEED / f"stage{stage}/global_step2", tmp_path / str(stage)))
        (folder / "expected.safetensors").unlink()
        found.add(ckptcheck.identity(folder).tensors["frozen.weight"])
    assert len(found) == 1


def test_one_bit_on_one_rank_is_named(saved: Path) -> None:
    take_expected(saved)
    usual, before = ckptcheck.identity(saved).tensors, read(saved)
    _flip_bit(saved / RANK.format(1))
    changed, after = ckptcheck.identity(saved).tensors, read(saved)
    (name,) = [name for name in usual if usual[name] != changed[name]]
    assert name in ("embed.weight", "up.weight")
    assert [each for each in before.weights if before.weights[each].digest != after.weights[each].digest] == [name]
    assert (before.naming, before.defects) == ("Hugging Face", [])
    assert before.identity != after.identity


def _flip_bit(path: Path) -> None:
    """Change the first of the weights in a rank's file."""
    file = _open(open_tree(str(path.parent)).open_folders([""]), path.name, "optimizer_state_dict")
    state = file.value["optimizer_state_dict"]
    vector = _locate(file, (state.get("fp32_flat_groups") or state["single_partition_of_fp32_groups"])[0])
    raw = bytearray(path.read_bytes())
    raw[vector.offset] ^= 1
    path.write_bytes(raw)


def _lose_rank(saved: Path) -> None:
    (saved / RANK.format(2)).unlink()


def _add_rank(saved: Path) -> None:
    shutil.copy(saved / RANK.format(0), saved / RANK.format(3))


def _empty_rank(saved: Path) -> None:
    (saved / RANK.format(2)).write_bytes(b"")


def _lose_model(saved: Path) -> None:
    for path in saved.glob("*mp_rank_00_model_states.pt"):
        path.unlink()


def _split_tensors(saved: Path) -> None:
    shutil.copy(saved / RANK.format(0), saved / RANK.format(0).replace("mp_rank_00", "mp_rank_01"))


def _split_experts(saved: Path) -> None:
    (saved / "layer_0_expert_3_mp_rank_00_model_states.pt").write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_lose_rank, r"the files of ranks 2 are missing"),
        (_add_rank, r"it has files of 4 ranks, and says that 3 wrote it: some are of another save"),
        (_empty_rank, r"bf16_zero_pp_rank_2_mp_rank_00_optim_states\.pt cannot be read: "),
        (_lose_model, r"the files of the model of ranks 0(, 1, 2)? are missing"),
        (_split_tensors, r"it has files of several model-parallel ranks, and how they share tensors is not known"),
        (_split_experts, r"its experts are spread over ranks, and how they share them is not known"),
    ],
)
def test_ranges_that_do_not_make_the_model_have_no_name(
    damage: Callable[[Path], None], message: str, saved: Path
) -> None:
    take_expected(saved)
    damage(saved)
    with pytest.raises(EvidenceError, match=rf"has no identity: {message}"):
        ckptcheck.identity(saved)
    assert re.search(message, "; ".join(read(saved).defects))


def test_ranks_of_another_model_do_not_fit(tmp_path: Path) -> None:
    """Groups of 150 and 30 elements on three ranks, and a file of the model whose parameters are others."""
    folder = tmp_path / "global_step2"
    ranks = [np.arange(6, dtype="<f4") for _ in range(2)]
    for number, vector in enumerate(ranks):
        state = {"zero_stage": 2, "partition_count": [2], "single_partition_of_fp32_groups": [vector]}
        write_torch_file(folder / RANK.format(number), {"optimizer_state_dict": state})

    def write_model(shapes: dict[str, tuple[int, ...]]) -> None:
        model = {"module": {}, "param_shapes": [shapes], "shared_params": {}}
        write_torch_file(folder / "mp_rank_00_model_states.pt", model)

    write_model({"a": (2, 4), "b": (3,)})  # one element of padding
    whole = ckptcheck.identity(folder).tensors
    vector = np.concatenate(ranks)
    assert whole["a"].digest == format_sums(sum_bytes(vector[:8].tobytes()), 32)
    assert whole["b"].digest == format_sums(sum_bytes(vector[8:11].tobytes()), 12)
    write_model({"a": (2, 4), "b": (5,)})
    with pytest.raises(EvidenceError, match="its ranks hold 12 elements, and b would end at 13"):
        ckptcheck.identity(folder)
    for number, vector in enumerate(ranks):
        state = {"zero_stage": 2, "partition_count": [2], "single_partition_of_fp32_groups": [vector]}
        state |= {"param_alignment_paddings": [[2, 0]]}  # behind a, so that b begins on a boundary
        write_torch_file(folder / RANK.format(number), {"optimizer_state_dict": state})
    write_model({"a": (2, 4), "b": (2,)})
    assert ckptcheck.identity(folder).tensors["b"].digest == format_sums(
        sum_bytes(np.concatenate(ranks)[10:].tobytes()), 8
    )
    for number, vector in enumerate(ranks):
        state = {"zero_stage": 2, "partition_count": [2], "single_partition_of_fp32_groups": [vector]}
        write_torch_file(folder / RANK.format(number), {"optimizer_state_dict": state})
    write_model({"a": (2, 4)})
    with pytest.raises(EvidenceError, match="its ranks hold 12 elements, and its parameters have 8"):
        ckptcheck.identity(folder)
    write_model({})
    with pytest.raises(EvidenceError, match="its ranks hold 12 elements, and its parameters have 0"):
        ckptcheck.identity(folder)


def test_the_config_of_the_save_around_it_names_joined_tensors(tmp_path: Path) -> None:
    """transformers' Trainer has its config.json beside the folder of DeepSpeed."""
    folder = tmp_path / "checkpoint-2/global_step2"
    vector = np.arange(64, dtype="<f4")
    state = {"zero_stage": 2, "partition_count": 1, "single_partition_of_fp32_groups": [vector]}
    write_torch_file(folder / RANK.format(0), {"optimizer_state_dict": state})
    name = "model.layers.0.self_attn.qkv_proj.weight"
    write_torch_file(
        folder / "mp_rank_00_model_states.pt", {"module": {}, "param_shapes": [{name: (16, 4)}], "shared_params": {}}
    )
    assert list(ckptcheck.identity(folder).tensors) == [name]
    config = {"model_type": "phi3", "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 8}
    (tmp_path / "checkpoint-2/config.json").write_text(json.dumps(config))
    found = ckptcheck.identity(folder).tensors
    assert {each.rpartition("self_attn.")[2]: found[each].shape for each in found} == {
        "q_proj.weight": (8, 4), "k_proj.weight": (4, 4), "v_proj.weight": (4, 4),
    }  # fmt: skip
    key = found["model.layers.0.self_attn.k_proj.weight"]
    assert key.digest == format_sums(sum_bytes(vector[32:48].tobytes()), 64)


def test_a_series_of_saves_under_zero_is_compared_by_its_tensors(saved: Path) -> None:
    take_expected(saved)
    shutil.rmtree(saved.parent.parent / "checkpoint-4", ignore_errors=True)
    shutil.copytree(saved, saved.parent.parent / "checkpoint-4/global_step4")
    report = ckptcheck.series(saved.parent.parent)
    (repeated,) = [each for each in report.findings if each.code == "SER001"]
    assert "holds the weights of" in repeated.message


def test_a_flat_range_is_the_rectangles_that_it_makes() -> None:
    draw = random.Random(0)
    for _ in range(500):
        shape = tuple(draw.randint(1, 5) for _ in range(draw.randint(0, 4)))
        total = prod(shape)
        begin = draw.randint(0, total)
        end = draw.randint(begin, total)
        whole, raw = np.full(shape, -1), np.arange(begin, end)
        for chunk in cut_flat_range(shape, 8, begin, end, "", 0):
            place = tuple(slice(first, first + size) for first, size in zip(chunk.origin, chunk.shape, strict=True))
            assert (whole[place] == -1).all()
            whole[place] = np.ndarray(chunk.shape, np.int64, raw, chunk.offset, chunk.strides)
        expected = [each if begin <= each < end else -1 for each in range(total)]
        assert whole.reshape(-1).tolist() == expected
