"""Reads Megatron checkpoints in every layout."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptcheck.checkpoint.megatron.megatron import Megatron
from ckptcheck.checkpoint.megatron.optimizer_state import FORMS, StateStats, is_optimizer_state
from ckptcheck.checkpoint.megatron.stubs import stub_for
from ckptcheck.checkpoint.megatron.tensor import Chunk, GlobalTensor, Item
from ckptcheck.checkpoint.megatron.tiling import TilingGap, find_tiling_gap
from ckptcheck.checkpoint.open import open_checkpoint, open_target
from ckptcheck.checkpoint.torch_archive import open_archive
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.linter.runner import run_rules
from ckptcheck.values.detectors.tensor_table import tensor_records
from tests.factories import dcp
from tests.factories.checkpoint_cases import MEGATRON, format_finding
from tests.factories.dcp import write_pickle
from tests.factories.megatron_cases import edit
from tests.factories.torch_archives import open_bytes, write_archive, write_tensor_pickle
from tests.test_rules import RULES, open_with_values

IT = "iter_0000100"


def megatron(path: Path) -> Megatron:
    found = open_target(str(path))
    assert isinstance(found, Megatron)
    return found


def findings(path: Path, *codes: str) -> list[str]:
    report = run_rules(open_with_values(path), [rule for rule in RULES if rule.code in codes or not codes])
    assert not report.crashed
    return [f"{finding.code} {format_finding(finding)}" for finding in report.findings]


# What was saved is what is read.


@pytest.mark.parametrize("name", ["dense", "tp2-pp2", "per-layer", "legacy-tp2", "legacy-pp2"])
def test_every_layout_holds_the_same_model(name: str) -> None:
    """The fixtures were all made from one set of weights: what the reader joins has to agree with the plainest of them."""
    plain, other = megatron(MEGATRON / "dense"), megatron(MEGATRON / name)
    names = {key.replace("input_layernorm.", "self_attention.linear_qkv.layer_norm_"): key for key in other.weights}
    names = {key.replace("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_"): old for key, old in names.items()}
    assert names.keys() == plain.weights.keys()
    for key, old in names.items():
        assert other.weights[old].shape == plain.weights[key].shape
        assert other.read(old).tobytes() == plain.read(key).tobytes(), key


@pytest.mark.parametrize("name", ["moe-ep2", "legacy-moe-ep2"])
def test_experts_are_numbered_over_the_whole_model(name: str) -> None:
    found = megatron(MEGATRON / name)
    assert found.structure.experts == {0: {0, 1, 2, 3}, 1: {0, 1, 2, 3}}
    other = megatron(MEGATRON / "moe-ep2")
    for expert in range(4):
        key = f"decoder.layers.1.mlp.experts.local_experts.{expert}.linear_fc1.weight"
        assert found.weights[key].shape == (24, 16)
        assert found.read(key).tobytes() == other.read(key).tobytes()


def test_a_box_of_a_weight_is_read_across_chunks() -> None:
    found = megatron(MEGATRON / "tp2-pp2")
    for key in ("embedding.word_embeddings.weight", "decoder.layers.1.mlp.linear_fc2.weight"):
        whole = found.read(key)
        assert found.read(key, [slice(3, 40), slice(5, 14)]).tobytes() == whole[3:40, 5:14].tobytes()
        assert found.read(key, [slice(9, 9)]).shape == (0, whole.shape[1])
    stacked = found.read(found.tensors["decoder.layers.mlp.linear_fc1.weight"])
    assert stacked.shape == (2, 48, 16)
    assert stacked[1].tobytes() == found.read("decoder.layers.1.mlp.linear_fc1.weight").tobytes()


def test_plain_torch_distributed_checkpoints_are_read() -> None:
    found = megatron(MEGATRON / "plain-dcp" / IT)
    assert found.common_state is None
    assert found.read("model.model.layers.1.self_attn.k_norm.weight").shape == (8,)
    assert found.subject.startswith("torch.distributed.checkpoint · 1 file · 25 tensors")


def test_the_arguments_and_the_subject() -> None:
    found = megatron(MEGATRON / "tp2-pp2")
    assert found.args["tensor_model_parallel_size"] == 2
    assert found.args["params_dtype"] == "F32"
    assert found.args["num_experts"] is None
    assert found.subject == f"Megatron torch_dist · {IT} · TP2 PP2 EP1 · 4 files · 11 tensors · 30.1 kB"


def test_a_chunk_that_cannot_be_read_says_so(copied: Any) -> None:
    folder = copied("dense")
    (folder / IT / "__0_0.distcp").write_bytes(b"")
    with pytest.raises(
        EvidenceError, match=r"could not read output_layer.weight in __0_0.distcp: the file ends before it"
    ):
        megatron(folder).read("output_layer.weight")


def test_tensors_that_are_not_contiguous(tmp_path: Path, copied: Any) -> None:
    """torch saves a transposed tensor as it lies: the strides say how."""
    folder = copied("plain-dcp")
    found = megatron(folder)
    value = found.read("model.lm_head.weight")
    described = write_tensor_pickle("FloatStorage", value.shape, (1, value.shape[0]))
    raw = write_archive({"data.pkl": described, "data/0": value.T.tobytes(), "byteorder": b"little"})
    path = folder / IT / "__0_0.distcp"
    item = Item("__0_0.distcp", path.stat().st_size, len(raw))
    path.write_bytes(path.read_bytes() + raw)
    table = dcp.read_table(folder / IT / ".metadata")
    table.chunks["model.lm_head.weight"] = [((0, 0), value.shape, item)]
    dcp.write_metadata(folder / IT / ".metadata", table)
    again = megatron(folder)
    assert again.read("model.lm_head.weight").tobytes() == value.tobytes()
    assert again.read("model.lm_head.weight", [slice(2, 9), slice(3, 4)]).tobytes() == value[2:9, 3:4].tobytes()
    assert findings(folder) == []


def test_commands_for_hugging_face_checkpoints_say_what_this_is() -> None:
    with pytest.raises(CkptcheckError, match=r"is a Megatron or torch.distributed.checkpoint folder"):
        open_checkpoint(str(MEGATRON / "dense"))


@pytest.mark.parametrize("arguments", [[], ["--headers-only"], ["--set", "no-mmap=on"], ["--format", "json"]])
def test_scan_on_the_command_line(arguments: list[str], copied: Any) -> None:
    folder = copied("tp2-pp2")
    command = [sys.executable, "-m", "ckptcheck", "scan", str(folder), *arguments]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    (folder / IT / "__1_0.distcp").unlink()
    broken = subprocess.run(command, capture_output=True, check=False, text=True)
    assert broken.returncode == 1
    assert "MEG007" in broken.stdout


def test_a_run_in_which_nothing_is_saved_yet(tmp_path: Path) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("300", encoding="ascii")
    assert [text.split(":")[0] for text in findings(tmp_path)] == ["MEG001 latest_checkpointed_iteration.txt"]


def test_a_tracker_that_is_a_pipe_or_leads_out_is_not_read(tmp_path: Path) -> None:
    """Opening a pipe would wait for ever; a link could show what is none of the checkpoint's."""
    os.mkfifo(tmp_path / "latest_checkpointed_iteration.txt")
    with pytest.raises(CkptcheckError, match="holds no checkpoint"):
        open_target(str(tmp_path))
    (tmp_path / "latest_checkpointed_iteration.txt").unlink()
    (tmp_path / "latest_checkpointed_iteration.txt").symlink_to("/etc/hostname")
    assert findings(tmp_path) == [
        "MEG034 latest_checkpointed_iteration.txt: this is a link to /etc/hostname, outside the checkpoint"
    ]


def test_an_empty_iteration_passes_nothing(tmp_path: Path) -> None:
    (tmp_path / "iter_0000001").mkdir()
    with pytest.raises(CkptcheckError, match="holds no checkpoint"):
        open_target(str(tmp_path))


def test_values_are_looked_at_where_they_lie(copied: Any) -> None:
    folder = copied("tp2-pp2")
    nan = {"hex": "0000c07f", "at": 8}
    edit(folder, {"elements": {"decoder.layers.0.mlp.linear_fc1.weight": [{"chunk": 2} | nan]}})
    assert findings(folder) == [
        f"VAL001 {IT}/__1_0.distcp decoder.layers.0.mlp.linear_fc1[12:24].weight: 1 value is NaN, the first at [0, 2]"
    ]


def _set_rows(folder: Path, rows: dict[int, Any], key: str = "embedding.word_embeddings.weight") -> None:
    """Set rows of a matrix that two tensor-parallel ranks share, to one number throughout or to as many as there are."""
    number, width = megatron(folder).weights[key].shape
    changes = [
        {"chunk": row // (number // 2), "at": row % (number // 2) * width * 4}
        | {"hex": np.broadcast_to(value, width).astype("<f4").tobytes().hex()}
        for row, value in rows.items()
    ]
    edit(folder, {"elements": {key: changes}})


@pytest.mark.parametrize("name", ["tp2-pp2", "legacy-tp2"])
def test_rows_of_an_embedding_that_ranks_share_are_judged_together(copied: Any, name: str) -> None:
    """The last four rows pad the vocabulary: that is how Megatron does it, and no finding."""
    folder = copied(name)
    assert findings(folder) == []
    _set_rows(folder, {3: 0.0, 40: 0.37, 41: 1e-6})
    (text,) = findings(folder, "EMB001", "EMB002", "EMB003", "EMB006")
    assert text.startswith("EMB002 ")
    assert text.partition(" (of 64 rows; ")[0].endswith(
        "embedding.word_embeddings.weight: 3 rows are untrained (the first is near zero): 3,40-41"
    )
    edit(folder, {"arguments": {"make_vocab_size_divisible_by": 2}})  # with two ranks three rows at most
    assert ": 4 rows are untrained (the first is near zero): 3,40-41,60 (" in findings(folder, "EMB002")[0]


@pytest.mark.parametrize("prefix", ["optimizer", "optimizers", "app.optimizers", "app.optimisers", "optim"])
def test_the_optimizer_is_no_weight_however_a_trainer_calls_it(prefix: str, copied: Any) -> None:
    folder = copied("plain-dcp")
    before = megatron(folder).weights.keys()
    edit(folder, {"contents": {"copy": {r"model\.(.*)": rf"{prefix}.state.\1.exp_avg"}}})
    found = megatron(folder)
    assert (found.weights.keys(), len(found.tensors)) == (before, 2 * len(before))
    assert findings(folder) == []


def test_what_is_a_state_of_an_optimizer() -> None:
    own = "optimizer.state.exp_avg_sq.decoder.layers.mlp.linear_fc1.weight"
    plain = "app.optimizers.state.model.layers.0.mlp.up_proj.weight.exp_avg"
    bucket = "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(F32, F32).bucket_idx_0.exp_avg"
    groups = "optimizer.param_groups.model.norm.weight.lr"
    assert [is_optimizer_state(key) for key in (own, plain, bucket, groups)] == [True, True, False, False]


@pytest.mark.parametrize("dtype", ["F64", "F32", "BF16", "F16"])
def test_states_are_told_by_their_patterns(dtype: str) -> None:
    width, infinity = FORMS[dtype]
    sign = 1 << (8 * width - 1)

    def seen(*patterns: int) -> StateStats:
        return StateStats().with_block(b"".join(pattern.to_bytes(width, "little") for pattern in patterns), dtype)

    assert seen(0, 0) == StateStats(zero=True)
    assert seen(0, sign) == StateStats(zero=True)
    assert seen(0, infinity - 1) == StateStats(zero=False)
    assert seen(1, infinity) == seen(1, infinity | 1) == StateStats(infinite=True, zero=False)
    assert seen(1, sign | 1) == StateStats(negative=True, zero=False)
    assert seen(1, sign | infinity | 1) == StateStats(infinite=True, negative=True, zero=False)


@pytest.mark.parametrize("module", ["nemo_rl.models.policy", "swift.megatron.arguments", "megatron.core.enums"])
def test_classes_of_trainers_in_the_arguments_are_known(module: str) -> None:
    assert stub_for(module, "Config") is not None
    assert stub_for(f"x{module}", "Config") is None


@pytest.mark.parametrize("name", ["tp2-pp2", "legacy-tp2"])
def test_rows_of_a_run_are_judged_without_a_tokenizer_as_far_as_that_goes(copied: Any, name: str) -> None:
    folder = copied(name)
    rules = [rule for rule in RULES if rule.code in ("EMB001", "EMB006")]
    assert set(run_rules(open_with_values(folder), rules).passed) == {"EMB001", "EMB006"}
    held = megatron(folder).read("embedding.word_embeddings.weight").view("<f4")
    drawn = np.random.default_rng(0).normal(0, held.std() / 10, (6, held.shape[1]))
    _set_rows(folder, {3: 0.0} | dict(zip(range(29, 35), drawn, strict=True)))  # of both ranks
    report = run_rules(open_with_values(folder), rules)
    assert report.skipped == (("EMB001", "there is no tokenizer to tell which tokens are used"),)
    (finding,) = report.findings
    assert (finding.code, finding.key.rpartition(".")[2]) == ("EMB006", "weight")
    assert finding.message.startswith("6 rows look initialised and never trained: of one size")
    assert finding.message.endswith("(29-34)")


def test_stats_of_a_run_have_the_rows_of_a_vocabulary_in_parts() -> None:
    found = open_with_values(MEGATRON / "tp2-pp2")
    assert isinstance(found, Megatron)
    table = {record["name"]: record["row_max_abs"] for record in tensor_records(found.values_view)}
    assert {name for name, rows in table.items() if rows is not None} == {
        f"{name}[{box}].weight" for name in ("embedding.word_embeddings", "output_layer") for box in ("0:32", "32:64")
    }
    rows = np.abs(found.read("output_layer.weight", [slice(32, 64)])).max(axis=1)
    assert np.allclose(np.array(table["output_layer[32:64].weight"]), rows, rtol=1e-5)


def test_a_pipeline_stage_that_is_the_other_again(copied: Any) -> None:
    """What a forgotten offset leaves: layer 1 is layer 0, byte for byte."""
    folder = copied("legacy-pp2")
    names = [name for name in megatron(folder).weights if name.startswith("decoder.layers.1.")]
    edit(folder, {"elements": {name: [{"twin": [name.replace(".1.", ".0.", 1), 0]}] for name in names}})
    assert [text for text in findings(folder) if "VAL008" in text] == [
        f"VAL008 {IT}/mp_rank_00_001/model_optim_rng.pt decoder.layers.1: decoder.layers: "
        "layer 1 repeats layer 0, byte for byte"
    ]


def test_a_norm_that_drifted_on_one_rank(copied: Any) -> None:
    folder = copied("legacy-tp2")
    found = megatron(folder)
    chunk = found.copies["decoder.final_layernorm.weight"][1]
    assert chunk.item is not None
    archive_ = found.archive(chunk.item)
    path = folder / chunk.item.file
    raw = bytearray(path.read_bytes())
    raw[archive_.records[chunk.record].begin] ^= 1
    path.write_bytes(raw)
    assert findings(folder, "MEG028") == [
        f"MEG028 {IT}/mp_rank_01/model_optim_rng.pt decoder.final_layernorm.weight: "
        "2 ranks hold a complete copy, and 1 copy differs from the first"
    ]


def test_a_value_head_that_is_a_row_of_the_embedding(copied: Any) -> None:
    folder = copied("critic")
    row = megatron(folder).read("embedding.word_embeddings.weight", [slice(0, 1)])
    edit(folder, {"elements": {"value_head.weight": [{"hex": row.tobytes().hex()}]}})
    assert findings(folder, "MEG030") == [
        f"MEG030 {IT} value_head.weight: it is row 0 of embedding.word_embeddings.weight, byte for byte: "
        "a language model was loaded into the place of the head"
    ]


def test_checksums_that_were_never_written_are_not_missed(copied: Any) -> None:
    """torch.serialization.set_crc32_options(False) writes zeros in their place."""
    found = open_archive(*open_bytes(write_archive({"data.pkl": write_pickle(None), "data/0": b"12345678"}, crc=False)))
    assert not found.has_checksums


@pytest.mark.parametrize(("length", "reads"), [(100, 1), (1 << 20, 2)])
def test_opening_an_archive_reads_its_ends_once(length: int, reads: int) -> None:
    """A checkpoint has 100,000 archives, and each short read opens a file."""
    raw = write_archive({"data.pkl": write_pickle(None), "data/0": bytes(length), "version": b"3\n"})
    ranges: list[tuple[int, int]] = []

    def read(start: int, length: int) -> bytes:
        ranges.append((start, length))
        return raw[start : start + length]

    found = open_archive(read, len(raw))
    assert len(ranges) == reads
    assert {name: record.is_corrupt for name, record in found.records.items()} == {
        "data.pkl": False,
        "data/0": False if reads == 1 else None,
        "version": False,
    }
    for name, record in found.records.items():
        wrong = bytearray(raw)
        wrong[record.begin] ^= 1
        assert open_archive(*open_bytes(bytes(wrong))).records[name].is_corrupt is (
            None if length > 1000 and name == "data/0" else True
        )


# Chunks against the tensor they tile.


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.randoms())
@settings(deadline=None, max_examples=60)
def test_any_grid_covers_and_any_loss_is_counted(shape: list[int], random: Any) -> None:
    cuts = [sorted({0, size, *random.sample(range(size + 1), random.randint(0, size))}) for size in shape]
    boxes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), ())]
    for marks in cuts:
        boxes = [((*at, low), (*extent, high - low)) for at, extent in boxes for low, high in itertools.pairwise(marks)]
    whole = GlobalTensor("w", "F32", tuple(shape), tuple(Chunk(at, extent, None) for at, extent in boxes))
    assert find_tiling_gap(whole) == TilingGap()
    lost = random.choice(whole.chunks)
    rest = GlobalTensor("w", "F32", whole.shape, tuple(chunk for chunk in whole.chunks if chunk is not lost))
    assert find_tiling_gap(rest).missing == lost.elements
    assert find_tiling_gap(rest).missing_at == lost.offsets
    twice = GlobalTensor("w", "F32", whole.shape, (*whole.chunks, lost))
    assert (find_tiling_gap(twice).missing, find_tiling_gap(twice).doubled) == (0, lost.elements)


def test_a_grid_too_fine_to_be_laid_out_is_not_called_exact(monkeypatch: Any) -> None:
    chunks = tuple(Chunk((row, 0), (1, 3), None) for row in range(4))
    assert find_tiling_gap(GlobalTensor("w", "F32", (4, 3), chunks)) == TilingGap()
    monkeypatch.setattr("ckptcheck.checkpoint.megatron.tiling.MAX_CELLS", 2)
    assert find_tiling_gap(GlobalTensor("w", "F32", (4, 3), chunks)) == TilingGap(unexamined=True)
    assert find_tiling_gap(GlobalTensor("w", "F32", (4, 3), chunks[1:])) == TilingGap(missing=3, unexamined=True)
    assert find_tiling_gap(GlobalTensor("w", "F32", (4, 3), (*chunks, chunks[0]))) == TilingGap(
        doubled=3, unexamined=True
    )
    report = run_rules(open_with_values(MEGATRON / "tp2-pp2"), [rule for rule in RULES if rule.code == "MEG009"])
    assert [code for code, _ in report.skipped] == ["MEG009"]
    assert report.skipped[0][1].startswith("too many chunks to look for gaps and overlaps: decoder.layers.")
