"""Reading Megatron checkpoints: those of the real megatron-core, and those that somebody made to do harm."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import dcp
import numpy as np
import pytest
from cases import MEGATRON, line
from dcp import Call, Global, Made, Raw, pickled
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron_cases import edit
from safetensors.numpy import load_file
from test_rules import RULES, opened

from ckptcheck.checkpoint import unpickle as unpickling
from ckptcheck.checkpoint.megatron.dcp import _known as dcp_known
from ckptcheck.checkpoint.megatron.dcp import read_contents
from ckptcheck.checkpoint.megatron.moments import FORMS, State, is_state
from ckptcheck.checkpoint.megatron.reading import Located
from ckptcheck.checkpoint.megatron.run import Megatron
from ckptcheck.checkpoint.megatron.stand_ins import known, load_persistent
from ckptcheck.checkpoint.megatron.tensor import Chunk, GlobalTensor, Item
from ckptcheck.checkpoint.megatron.tiling import Cover, cover_of
from ckptcheck.checkpoint.open import open_checkpoint, open_target
from ckptcheck.checkpoint.torch_archive import UnreadableArchive, open_archive
from ckptcheck.checkpoint.unpickle import UnreadablePickle, unpickle
from ckptcheck.errors import CkptcheckError, EvidenceError
from ckptcheck.run import run
from ckptcheck.values.table import records

IT = "iter_0000100"


@pytest.fixture
def copied(tmp_path: Path) -> Any:
    def copy(name: str) -> Path:
        return Path(shutil.copytree(MEGATRON / name, tmp_path / name))

    return copy


def megatron(path: Path) -> Megatron:
    found = open_target(str(path))
    assert isinstance(found, Megatron)
    return found


def findings(path: Path, *codes: str) -> list[str]:
    report = run(opened(path), [rule for rule in RULES if rule.code in codes or not codes])
    assert not report.crashed
    return [f"{finding.code} {line(finding)}" for finding in report.findings]


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
    assert found.common is None
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
    described = pickled_tensor("FloatStorage", value.shape, (1, value.shape[0]))
    raw = archive({"data.pkl": described, "data/0": value.T.tobytes(), "byteorder": b"little"})
    path = folder / IT / "__0_0.distcp"
    item = Item("__0_0.distcp", path.stat().st_size, len(raw))
    path.write_bytes(path.read_bytes() + raw)
    table = dcp.read(folder / IT / ".metadata")
    table.chunks["model.lm_head.weight"] = [((0, 0), value.shape, item)]
    dcp.write(folder / IT / ".metadata", table)
    again = megatron(folder)
    assert again.read("model.lm_head.weight").tobytes() == value.tobytes()
    assert again.read("model.lm_head.weight", [slice(2, 9), slice(3, 4)]).tobytes() == value[2:9, 3:4].tobytes()
    assert findings(folder) == []


def test_commands_for_hugging_face_checkpoints_say_what_this_is() -> None:
    with pytest.raises(CkptcheckError, match=r"is a Megatron or torch.distributed.checkpoint folder"):
        open_checkpoint(str(MEGATRON / "dense"))


@pytest.mark.parametrize("arguments", [[], ["--headers-only"], ["--no-mmap"], ["--format", "json"]])
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
    assert [is_state(key) for key in (own, plain, bucket, groups)] == [True, True, False, False]


@pytest.mark.parametrize("dtype", ["F64", "F32", "BF16", "F16"])
def test_states_are_told_by_their_patterns(dtype: str) -> None:
    width, infinity = FORMS[dtype]
    sign = 1 << (8 * width - 1)

    def seen(*patterns: int) -> State:
        return State().with_block(b"".join(pattern.to_bytes(width, "little") for pattern in patterns), dtype)

    assert seen(0, 0) == State(zero=True)
    assert seen(0, sign) == State(zero=True)
    assert seen(0, infinity - 1) == State(zero=False)
    assert seen(1, infinity) == seen(1, infinity | 1) == State(infinite=True, zero=False)
    assert seen(1, sign | 1) == State(negative=True, zero=False)
    assert seen(1, sign | infinity | 1) == State(infinite=True, negative=True, zero=False)


@pytest.mark.parametrize("module", ["nemo_rl.models.policy", "swift.megatron.arguments", "megatron.core.enums"])
def test_classes_of_trainers_in_the_arguments_are_known(module: str) -> None:
    assert known(module, "Config") is not None
    assert known(f"x{module}", "Config") is None


@pytest.mark.parametrize("name", ["tp2-pp2", "legacy-tp2"])
def test_rows_of_a_run_are_judged_without_a_tokenizer_as_far_as_that_goes(copied: Any, name: str) -> None:
    folder = copied(name)
    rules = [rule for rule in RULES if rule.code in ("EMB001", "EMB006")]
    assert set(run(opened(folder), rules).passed) == {"EMB001", "EMB006"}
    held = megatron(folder).read("embedding.word_embeddings.weight").view("<f4")
    drawn = np.random.default_rng(0).normal(0, held.std() / 10, (6, held.shape[1]))
    _set_rows(folder, {3: 0.0} | dict(zip(range(29, 35), drawn, strict=True)))  # of both ranks
    report = run(opened(folder), rules)
    assert report.skipped == (("EMB001", "there is no tokenizer to tell which tokens are used"),)
    (finding,) = report.findings
    assert (finding.code, finding.key.rpartition(".")[2]) == ("EMB006", "weight")
    assert finding.message.startswith("6 rows look drawn and never trained, ")
    assert finding.message.endswith(" and alike: 29-34")


def test_stats_of_a_run_have_the_rows_of_a_vocabulary_in_parts() -> None:
    found = opened(MEGATRON / "tp2-pp2")
    assert isinstance(found, Megatron)
    table = {record["name"]: record["row_max_abs"] for record in records(found.values_view)}
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
        "layer 1 is layer 0 again, byte for byte"
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
    assert findings(folder, "MEG029") == [
        f"MEG029 {IT}/mp_rank_01/model_optim_rng.pt decoder.final_layernorm.weight: "
        "2 ranks hold it whole, and 1 copy differs from the first"
    ]


def test_a_value_head_that_is_a_row_of_the_embedding(copied: Any) -> None:
    folder = copied("critic")
    row = megatron(folder).read("embedding.word_embeddings.weight", [slice(0, 1)])
    edit(folder, {"elements": {"value_head.weight": [{"hex": row.tobytes().hex()}]}})
    assert findings(folder, "MEG033") == [
        f"MEG033 {IT} value_head.weight: it is row 0 of embedding.word_embeddings.weight, byte for byte, "
        "as loading a language model into this place leaves it"
    ]


def test_checksums_that_were_never_written_are_not_missed(copied: Any) -> None:
    """torch.serialization.set_crc32_options(False) writes zeros in their place."""
    found = open_archive(*readable(archive({"data.pkl": pickled(None), "data/0": b"12345678"}, crc=False)))
    assert not found.checked


# Chunks against the tensor they tile.


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.randoms())
@settings(deadline=None, max_examples=60)
def test_any_grid_covers_and_any_loss_is_counted(shape: list[int], random: Any) -> None:
    cuts = [sorted({0, size, *random.sample(range(size + 1), random.randint(0, size))}) for size in shape]
    boxes: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), ())]
    for marks in cuts:
        boxes = [((*at, low), (*extent, high - low)) for at, extent in boxes for low, high in itertools.pairwise(marks)]
    whole = GlobalTensor("w", "F32", tuple(shape), tuple(Chunk(at, extent, None) for at, extent in boxes))
    assert cover_of(whole) == Cover()
    lost = random.choice(whole.chunks)
    rest = GlobalTensor("w", "F32", whole.shape, tuple(chunk for chunk in whole.chunks if chunk is not lost))
    assert cover_of(rest).missing == lost.elements
    assert cover_of(rest).missing_at == lost.offsets
    twice = GlobalTensor("w", "F32", whole.shape, (*whole.chunks, lost))
    assert (cover_of(twice).missing, cover_of(twice).doubled) == (0, lost.elements)


def test_a_grid_too_fine_to_be_laid_out_is_not_called_exact(monkeypatch: Any) -> None:
    chunks = tuple(Chunk((row, 0), (1, 3), None) for row in range(4))
    assert cover_of(GlobalTensor("w", "F32", (4, 3), chunks)) == Cover()
    monkeypatch.setattr("ckptcheck.checkpoint.megatron.tiling.MAX_CELLS", 2)
    assert cover_of(GlobalTensor("w", "F32", (4, 3), chunks)) == Cover(unexamined=True)
    assert cover_of(GlobalTensor("w", "F32", (4, 3), chunks[1:])) == Cover(missing=3, unexamined=True)
    assert cover_of(GlobalTensor("w", "F32", (4, 3), (*chunks, chunks[0]))) == Cover(doubled=3, unexamined=True)
    report = run(opened(MEGATRON / "tp2-pp2"), [rule for rule in RULES if rule.code in ("MEG009", "MEG010")])
    assert [code for code, _ in report.skipped] == ["MEG009", "MEG010"]
    assert report.skipped[0][1].startswith("too many chunks to look for gaps: decoder.layers.")


# Pickles that would do harm: nothing of them is executed, and nothing takes memory or time without bound.

CANARY = "ckptcheck_canary"
SYSTEM = Global("os", "system")
COMMAND = f"touch {CANARY}"
EVIL = {
    "reduce": Call(SYSTEM, (COMMAND,)),
    "reduce of a builtin": Call(Global("builtins", "eval"), (f"open({CANARY!r}, 'w')",)),
    "a getter of attributes": Call(
        Call(Global("builtins", "getattr"), (Global("os", "system"), "__call__")), (COMMAND,)
    ),
    "new object": Made(SYSTEM, None, (COMMAND,)),
    "state of an object": Made(Global("torch.distributed.checkpoint.metadata", "Metadata"), Call(SYSTEM, (COMMAND,))),
    "a dotted name": Call(Global("torch", "serialization.os.system"), (COMMAND,)),
    "through numpy": Call(Global("numpy.testing._private.utils", "runstring"), (f"open({CANARY!r}, 'w')", {})),
    "through torch": Call(Global("torch.hub", "load"), (".", "x")),
    "a partial": Call(Call(Global("functools", "partial"), (SYSTEM, COMMAND))),
    "nested in what is known": Call(Global("collections", "OrderedDict"), (Call(SYSTEM, (COMMAND,)),)),
    "new object with keywords": Raw(dcp.code(SYSTEM) + dcp.code((COMMAND,)) + dcp.code({}) + b"\x92"),
    "state on what a command made": Raw(dcp.code(Call(SYSTEM, (COMMAND,))) + dcp.code({"__class__": SYSTEM}) + b"b"),
    "a line's global": Raw(b"cos\nsystem\n" + dcp.code((COMMAND,)) + b"R"),
}


@pytest.mark.parametrize("name", EVIL)
def test_a_pickle_that_would_run_a_command_runs_nothing(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path(shutil.copytree(MEGATRON / "dense", tmp_path / "dense"))
    for target in (folder / IT / ".metadata", folder / IT / "common.pt"):
        raw = target.read_bytes()
        evil = pickled({"args": EVIL[name]})
        if target.name == ".metadata":
            evil = pickled(dcp.table_value(dcp.read(target), extra=EVIL[name]))
        target.write_bytes(evil if target.name == ".metadata" else archive({"data.pkl": evil, "byteorder": b"little"}))
        report = run(opened(folder), RULES)
        assert not report.crashed
        assert report.verdict == "findings"
        assert {finding.code for finding in report.findings} & {"MEG027", "MEG004", "MEG026"}
        assert not Path(CANARY).exists()
        assert not (Path(__file__).parent / CANARY).exists()
        target.write_bytes(raw)


@pytest.mark.parametrize("length", [0, 1, 9, 10, 127, 128, 255])
def test_texts_and_integers_of_any_length_are_walked_over(length: int) -> None:
    """Short ones are skipped by a regular expression, others one by one; what follows must be read either way."""
    text, number = "R" * length, int.from_bytes(b"\x81" * length, "little", signed=True)
    raw = b"\x80\x04\x8c" + bytes([length]) + text.encode() + b"\x8a" + bytes([length]) + b"\x81" * length + b"\x86."
    assert unpickle(raw, known).value == (text, number)
    with pytest.raises(UnreadablePickle, match="its opcode b'i'"):
        unpickle(raw[:-2] + b"ios\nsystem\n.", known)


def test_a_foreign_global_is_named(copied: Any) -> None:
    folder = copied("dense")
    value = dcp.table_value(dcp.read(folder / IT / ".metadata"), extra=EVIL["reduce"])
    (folder / IT / ".metadata").write_bytes(pickled(value))
    assert findings(folder) == [
        f"MEG027 {IT}/.metadata: its pickle names os.system, which no checkpoint needs: "
        "loading it would import and may run that"
    ]


def long_put(index: int) -> bytes:
    return b"N" + b"r" + struct.pack("<I", index)


def nested(depth: int) -> bytes:
    return b"\x80\x04}" + b")" + b"\x85" * depth + b"Ns."


HARMFUL = {
    "INST": b"\x80\x02(S'touch x'\nios\nsystem\n.",
    "OBJ": b"\x80\x02(cos\nsystem\nX\x01\x00\x00\x00xo.",
    "extension registry": b"\x80\x02\x82\x01.",
    "extension registry, wide": b"\x80\x02\x84\x01\x00\x00\x00.",
    "text integers": b"\x80\x00I" + b"9" * 100_000 + b"\n.",
    "a huge memo": b"\x80\x02" + long_put(0xFFFFFFFF) + b".",
    "a memo beyond the file": b"\x80\x02" + long_put(1 << 20) + b".",
    "a text memo": b"\x80\x02Np999999999999\n.",
    "a memo of millions": b"\x80\x04}X"
    + struct.pack("<I", 1 << 25)
    + bytes(1 << 25)
    + b"r"
    + struct.pack("<I", 1 << 25)
    + b"Ns.",
    "a memo without end": b"\x80\x04}" + b"\x94" * ((1 << 24) + 1) + b".",
    "a call of a text": b"\x80\x04\x8c\x01x)R.",
    "an object of a text": b"\x80\x04\x8c\x01x)\x81.",
    "state on a text": b"\x80\x04\x8c\x01x}b.",
    "an extension beyond all": b"\x80\x02\x83\xff\xff.",
    "a text cut off": b"\x80\x04\x8c\x7fabc",
    "an integer cut off": b"\x80\x04\x8a\x08abc.",
    "an absurd integer": b"\x80\x02\x8b" + struct.pack("<I", 1 << 20) + b"\x01" * (1 << 20) + b".",
    "a negative length": b"\x80\x02\x8b\xff\xff\xff\xff.",
    "an absurd length": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"x.",
    "a string without end": b"\x80\x04X\xff\xff\xff\x7fabc.",
    "containers without end": b"\x80\x02" + b"}" * ((1 << 24) + 1) + b".",
    "nothing": b"",
    "only its head": b"\x80\x04",
    "no end": b"\x80\x04}",
    "an empty stack": b"\x80\x04R.",
    "an unknown memo": b"\x80\x04h\x05.",
    "a protocol that is none": b"\x80\xff}.",
    "duplicates": b"\x80\x02}" + b"2" * 1000 + b".",
    "buffers": b"\x80\x05\x97.",
    "a persistent object": b"\x80\x04X\x01\x00\x00\x00xQ.",
    "state on a class": b"\x80\x04" + dcp.code(Global("argparse", "Namespace")) + dcp.code((None, {"x": 1})) + b"b.",
    "state on a function": b"\x80\x04" + dcp.code(Global("torch", "Size")) + dcp.code({"x": 1}) + b"b.",
    "state on a class of the table of contents": b"\x80\x04"
    + dcp.code(Global(dcp.METADATA, "Metadata"))
    + dcp.code({"__new__": 1})
    + b"b.",
    "attributes on a class of the table of contents": b"\x80\x04"
    + dcp.code(Global(dcp.METADATA, "Metadata"))
    + dcp.code((None, {"__setstate__": 1}))
    + b"b.",
    "state on a dtype": b"\x80\x04" + dcp.code(Global("torch", "float32")) + dcp.code({"x": 1}) + b"b.",
    "a list that is unhashable": b"\x80\x04}]Ns.",
    "half a frame": b"\x80\x04\x95\xff\xff",
    "bytes after the end": pickled({}) + b"cos\nsystem\n",
}


@pytest.mark.parametrize("name", HARMFUL)
def test_a_harmful_pickle_is_refused(name: str) -> None:
    with pytest.raises(UnreadablePickle):
        unpickle(HARMFUL[name], lambda module, name: known(module, name) or dcp_known(module, name))
    found = read_contents(HARMFUL[name])
    assert not found.readable
    assert [defect.kind for defect in found.defects] == ["unreadable-metadata"]


@pytest.mark.parametrize("depth", [10, 5_000, 200_000])
def test_tuples_nested_beyond_any_stack_do_not_bring_the_process_down(depth: int) -> None:
    """CPython hashes a tuple by recursion, and does not look at how much of the stack is left."""
    script = (
        "import sys; from ckptcheck.checkpoint.unpickle import unpickle\n"
        "unpickle(sys.stdin.buffer.read(), lambda module, name: None); print('read')"
    )
    done = subprocess.run([sys.executable, "-c", script], input=nested(depth), capture_output=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, b"read"), done.stderr


def test_billion_laughs_are_shared_not_copied() -> None:
    """Each list holds the one before it ten times: read, it takes a few kilobytes; written out, more than there is."""
    raw = b"\x80\x04]\x94"
    for level in range(40):
        raw += b"](" + b"h" + bytes([level]) + (b"h" + bytes([level])) * 9 + b"e\x94"
    found = unpickle(raw + b".", lambda module, name: None)
    assert len(found.value) == 10
    assert not read_contents(raw + b".").readable


@pytest.mark.parametrize("what", [Global("torch", "Size"), Global("collections", "OrderedDict")])
def test_a_long_list_cannot_be_copied_again_and_again(what: Global) -> None:
    copies = b"".join(dcp.code(what) + b"h\x00\x85R0" for _ in range(3)).replace(b"0", b"")
    raw = b"\x80\x04](" + b"N" * 100_000 + b"e\x94" + copies + b"."
    with pytest.raises(UnreadablePickle, match=r"it holds a size|it copies one mapping"):
        unpickle(raw, known)


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    for text in (raw, b"\x80\x04" + raw + b"."):
        with contextlib.suppress(UnreadablePickle):
            unpickle(text, known, load_persistent)
    read_contents(raw)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_real_table_of_contents_with_bytes_changed_is_read_or_refused(data: st.DataObject) -> None:
    raw = bytearray((MEGATRON / "dense" / IT / ".metadata").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    found = read_contents(bytes(raw))
    for tensor in found.tensors.values():
        cover_of(tensor)


def test_the_stand_ins_keep_no_trace_of_a_pickle() -> None:
    """What one pickle sets on a stand-in must not be there for the next."""
    before = {name: dict(vars(found)) for name, found in vars(unpickling).items() if isinstance(found, type)}
    for raw in HARMFUL.values():
        with pytest.raises(UnreadablePickle):
            unpickle(raw, known)
    after = {name: dict(vars(found)) for name, found in vars(unpickling).items() if isinstance(found, type)}
    assert before == after


# Archives that would do harm.


def archive(records: dict[str, bytes], *, method: int = zipfile.ZIP_STORED, crc: bool = True) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as written:
        for name, raw in records.items():
            written.writestr(f"archive/{name}", raw)
    raw = bytearray(out.getvalue())
    if not crc:
        at = 0
        while (at := raw.find(b"PK\x01\x02", at)) >= 0:
            raw[at + 16 : at + 20] = bytes(4)
            at += 4
    return bytes(raw)


def readable(raw: bytes) -> tuple[Any, int]:
    return lambda start, length: raw[start : start + length], len(raw)


def pickled_tensor(storage: str, shape: tuple[int, ...], stride: tuple[int, ...], skip: int = 0) -> bytes:
    total = int(np.prod(shape))
    persistent = Raw(dcp.code(("storage", Global("torch", storage), "0", "cpu", total)) + b"Q")
    arguments = (persistent, skip, tuple(shape), tuple(stride), False, Call(Global("collections", "OrderedDict")))
    return pickled(Call(Global("torch._utils", "_rebuild_tensor_v2"), arguments))


BOMB = archive({"data.pkl": bytes(1 << 24)}, method=zipfile.ZIP_DEFLATED)
TWO = archive({"data.pkl": pickled(None), "sub/data.pkl": pickled(None)})
ARCHIVES = {
    "a zip bomb": (BOMB, "its records are compressed, which torch.save never does"),
    "no data.pkl": (archive({"data/0": b"x"}), "it holds no data.pkl"),
    "two data.pkl": (TWO, "it holds several data.pkl"),
    "half": (BOMB[: len(BOMB) // 2], "it is no zip that can be read"),
    "text": (b"hello", "it does not begin as an archive of torch.save does"),
    "nothing": (b"", "it does not begin as an archive of torch.save does"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_harmful_archive_is_refused(name: str) -> None:
    raw, reason = ARCHIVES[name]
    with pytest.raises(UnreadableArchive, match=reason):
        open_archive(*readable(raw))


def test_a_record_that_reaches_beyond_the_archive() -> None:
    raw = bytearray(archive({"data.pkl": pickled(None), "data/0": b"12345678"}))
    at = raw.rindex(b"PK\x01\x02")
    raw[at + 20 : at + 28] = struct.pack("<II", 1 << 30, 1 << 30)
    with pytest.raises(UnreadableArchive, match="a record reaches beyond its end"):
        open_archive(*readable(bytes(raw)))


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_real_archive_with_bytes_changed_is_read_or_refused(data: st.DataObject) -> None:
    raw = bytearray((MEGATRON / "dense" / IT / "common.pt").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(UnreadableArchive):
        open_archive(*readable(bytes(raw))).describe(known, load_persistent)


@pytest.mark.parametrize("change", ["shape", "dtype", "storage", "big"])
def test_an_item_that_holds_something_else(change: str, copied: Any) -> None:
    folder = copied("plain-dcp")
    shape = (60, 16) if change != "shape" else (60, 8)
    described = pickled_tensor("HalfStorage" if change == "dtype" else "FloatStorage", shape, (shape[1], 1))
    data = bytes(60 * 16 * 4) if change != "storage" else bytes(8)
    raw = archive({"data.pkl": described, "data/0": data, "byteorder": b"big" if change == "big" else b"little"})
    path = folder / IT / "__0_0.distcp"
    item = Item("__0_0.distcp", path.stat().st_size, len(raw))
    path.write_bytes(path.read_bytes() + raw)
    table = dcp.read(folder / IT / ".metadata")
    table.chunks["model.lm_head.weight"] = [((0, 0), (60, 16), item)]
    dcp.write(folder / IT / ".metadata", table)
    reasons = {
        "shape": "it holds 480 elements, and the table of contents says 960",
        "dtype": "it holds F16, and the table of contents says F32",
        "storage": "its storage is shorter than the tensor",
        "big": "it was written on a big-endian machine",
    }
    assert findings(folder, "MEG014") == [
        f"MEG014 {IT}/__0_0.distcp model.lm_head.weight: its item cannot be read: {reasons[change]}"
    ]


# The real megatron-core, where its environment is there.

ENVIRONMENT = Path(os.environ.get("CKPTCHECK_HOME", Path.home() / ".cache/ckptcheck")) / "engines/megatron/bin/python"


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not ENVIRONMENT.is_file():
        pytest.skip(f"the megatron environment is not installed ({ENVIRONMENT} does not exist)")
    out = tmp_path_factory.mktemp("megatron")
    script = Path(__file__).parent.parent / "fixtures/write_megatron.py"
    done = subprocess.run([str(ENVIRONMENT), str(script), str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def expected(config: dict[str, Any], tensors: dict[str, np.ndarray], name: str) -> np.ndarray:
    """The weight that Megatron calls so, from the Hugging Face checkpoint; an arrangement of its own, by numpy."""
    rows = np.zeros((4, config["hidden_size"]), "f4")
    if name.startswith("embedding") or (name.startswith("output") and config["tie_word_embeddings"]):
        return np.concatenate([tensors["model.embed_tokens.weight"], rows])
    if name.startswith("output"):
        return np.concatenate([tensors["lm_head.weight"], rows])
    if name == "decoder.final_layernorm.weight":
        return tensors["model.norm.weight"]
    _, _, layer, rest = name.split(".", 3)
    prefix = f"model.layers.{layer}."
    simple = {
        "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
        "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
        "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
        "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",
        "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight",
        "input_layernorm.weight": "input_layernorm.weight",
        "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
        "mlp.linear_fc2.weight": "mlp.down_proj.weight",
        "mlp.router.weight": "mlp.gate.weight",
    }
    if rest in simple:
        return tensors[prefix + simple[rest]]
    if rest == "self_attention.linear_qkv.weight":
        q, k, v = (tensors[f"{prefix}self_attn.{part}_proj.weight"] for part in "qkv")
        size, groups = config["head_dim"], config["num_key_value_heads"]
        each = [w.reshape(groups, -1, size, w.shape[1]) for w in (q, k, v)]
        return np.concatenate(each, axis=1).reshape(-1, q.shape[1])
    block = "mlp" if "experts" not in rest else f"mlp.experts.{rest.split('local_experts.')[1].split('.')[0]}"
    if rest.endswith("linear_fc1.weight"):
        return np.concatenate([tensors[f"{prefix}{block}.{part}_proj.weight"] for part in ("gate", "up")])
    return tensors[f"{prefix}{block}.down_proj.weight"]


@pytest.mark.engine
def test_all_layouts_of_the_real_megatron_hold_the_model_they_were_made_from(written: Path) -> None:
    looked = 0
    for folder in sorted(path for path in written.iterdir() if not path.name.endswith("-hf")):
        reference = folder.with_name(folder.name + "-hf")
        config = json.loads((reference / "config.json").read_text(encoding="utf-8"))
        assert findings(folder) == [], folder.name
        if config["dtype"] == "bfloat16" or folder.name == "plain-dcp":
            continue
        tensors, found = load_file(reference / "model.safetensors"), megatron(folder)
        layers = config["num_hidden_layers"]
        assert set(found.structure.layers) == set(range(layers)), folder.name
        for name in found.weights:
            if not name.startswith("value_head"):
                assert np.array_equal(found.read(name), expected(config, tensors, name)), (folder.name, name)
                looked += 1
        assert found.weights.keys() >= {"embedding.word_embeddings.weight", "decoder.final_layernorm.weight"}
        assert ("value_head.weight" in found.weights) == folder.name.startswith("critic")
    assert looked > 400


@pytest.mark.engine
def test_bf16_is_read_as_patterns(written: Path) -> None:
    found = megatron(written / "dense-bf16")
    raw = (written / "dense-bf16-hf/model.safetensors").read_bytes()
    assert found.weights["output_layer.weight"].dtype == "BF16"
    value = found.read("output_layer.weight", [slice(0, 60)])
    assert value.dtype == np.uint16
    assert value.tobytes() in raw


def test_located_is_where_the_bytes_lie() -> None:
    found = opened(MEGATRON / "dense")
    assert isinstance(found, Megatron)
    [(chunk, place)] = found.inspection.located["output_layer.weight"]
    assert isinstance(place, Located)
    raw = (MEGATRON / "dense" / place.name).read_bytes()[place.begin : place.begin + place.nbytes]
    assert raw == found.read("output_layer.weight").tobytes()
    assert chunk.sizes == (64, 16)
